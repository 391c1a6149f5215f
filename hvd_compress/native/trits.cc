#include "trits.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "pool.h"

namespace hvd_compress {
namespace {

// Twenty numbers are five bytes of pairs and four bytes of five each.
constexpr std::size_t kNumbers = 20, kPairBytes = 5, kTritBytes = 4, kGroups = 4096;
constexpr unsigned kFive = 10;
constexpr std::uint16_t kNone = 0xFFFF;

constexpr std::array<std::uint8_t, 1 << kFive> packed_fives() {
    std::array<std::uint8_t, 1 << kFive> bytes{};
    for (unsigned pairs = 0; pairs < bytes.size(); ++pairs) {
        unsigned byte = 0;
        for (unsigned place = kFive; place > 0; place -= 2) byte = 3 * byte + (pairs >> (place - 2) & 3);
        bytes[pairs] = static_cast<std::uint8_t>(byte);
    }
    return bytes;
}

constexpr std::array<std::uint16_t, 256> unpacked_fives() {
    std::array<std::uint16_t, 256> fives{};
    for (unsigned byte = 0; byte < fives.size(); ++byte) {
        unsigned pairs = 0, rest = byte;
        for (unsigned place = 0; place < kFive; place += 2, rest /= 3) pairs |= rest % 3 << place;
        fives[byte] = rest ? kNone : static_cast<std::uint16_t>(pairs);
    }
    return fives;
}

constexpr auto kPacked = packed_fives();
constexpr auto kUnpacked = unpacked_fives();

std::size_t pairs_size(std::size_t count) { return (2 * count + 7) / 8; }
std::size_t trits_size(std::size_t count) { return (count + 4) / 5; }

// Calls act(begin, size) with the numbers of some groups.
template <typename Act>
void in_groups(std::size_t count, const Act& act) {
    constexpr std::size_t kTogether = kGroups * kNumbers;
    parallel((count + kTogether - 1) / kTogether, [&](std::size_t part) {
        const std::size_t begin = part * kTogether;
        act(begin, std::min(kTogether, count - begin));
    });
}

}  // namespace

void pack_trits(const std::uint8_t* pairs, std::size_t count, std::uint8_t* out) {
    in_groups(count, [&](std::size_t begin, std::size_t size) {
        for (std::size_t at = begin; at < begin + size; at += kNumbers) {
            const std::size_t numbers = std::min(kNumbers, begin + size - at);
            std::uint64_t word = 0;
            std::memcpy(&word, pairs + at / 4, std::min(kPairBytes, pairs_size(numbers)));
            if (numbers < kNumbers) word &= (std::uint64_t{1} << (2 * numbers)) - 1;
            std::uint8_t bytes[kTritBytes];
            for (std::size_t i = 0; i < kTritBytes; ++i, word >>= kFive) bytes[i] = kPacked[word & (kPacked.size() - 1)];
            std::memcpy(out + at / 5, bytes, trits_size(numbers));
        }
    });
}

bool unpack_trits(const std::uint8_t* packed, std::size_t count, std::uint8_t* pairs) {
    std::atomic<bool> good{true};
    in_groups(count, [&](std::size_t begin, std::size_t size) {
        bool known = true;
        for (std::size_t at = begin; at < begin + size; at += kNumbers) {
            const std::size_t numbers = std::min(kNumbers, begin + size - at);
            std::uint64_t word = 0;
            for (std::size_t i = trits_size(numbers); i-- > 0;) {
                const std::uint16_t five = kUnpacked[packed[at / 5 + i]];
                known &= five != kNone;
                word = word << kFive | five;
            }
            if (numbers < kNumbers) word &= (std::uint64_t{1} << (2 * numbers)) - 1;
            std::memcpy(pairs + at / 4, &word, pairs_size(numbers));
        }
        if (!known) good = false;
    });
    return good;
}

}  // namespace hvd_compress
