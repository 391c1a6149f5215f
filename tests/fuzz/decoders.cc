// Feeds the decoders of hvd_compress/native what no encoder has written: libFuzzer and the sanitizers look on.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bits.h"
#include "entries.h"
#include "kernels.h"
#include "pool.h"
#include "quantise.h"

using namespace hvd_compress;

namespace {

// Reads numbers from the front of the input, zeros when it is used up.
class Input {
public:
    Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

    template <typename T>
    T next() {
        T value{};
        const std::size_t count = std::min(sizeof value, size_);
        std::memcpy(&value, data_, count);
        data_ += count;
        size_ -= count;
        return value;
    }

    std::size_t below(std::size_t limit) { return next<std::uint32_t>() % limit; }

    // A copy of its own size, so that reading beyond its end is noticed.
    std::vector<std::uint8_t> bytes(std::size_t count) {
        std::vector<std::uint8_t> copy(count, 0);
        for (auto& byte : copy) byte = next<std::uint8_t>();
        return copy;
    }

private:
    const std::uint8_t* data_;
    std::size_t size_;
};

std::size_t packed(std::size_t count, std::size_t bits) { return (count * bits + 7) / 8; }

void indices(Input& in) {
    const std::size_t n = 1 + in.below(1 << 20), k = in.below(2000);
    const unsigned low = static_cast<unsigned>(in.below(kMostBits + 1));
    const std::vector<std::uint8_t> lows = in.bytes(packed(k, low)), high = in.bytes(in.below(1000));
    std::vector<std::int64_t> found(k);
    const Fault fault = unpack_rising(lows.data(), high.data(), lows.size(), high.size(), low,
                                      static_cast<std::int64_t>(n), k, found.data());
    if (fault != Fault::none) return;
    // What is accepted is safe to use.
    std::vector<float> total(n, 1.0f), values(k, 0.5f);
    const Sent sent{found.data(), values.data(), k};
    if (!sum_entries(total.data(), n, {sent, sent}, true, 0.25f)) __builtin_trap();
    if (are_distinct({sent}, n) != Distinct::yes) __builtin_trap();
}

void bitmaps(Input& in) {
    const std::vector<std::uint8_t> bitmap = in.bytes(in.below(5000));
    std::vector<std::int64_t> found(count_ones(bitmap.data(), bitmap.size()));
    find_ones(bitmap.data(), bitmap.size(), found.data());
    std::vector<std::uint8_t> again(bitmap.size(), 0);
    if (!set_bits(found.data(), found.size(), 0, 0, again.data(), 8 * again.size()) || again != bitmap) __builtin_trap();
}

void codes(Input& in) {
    const unsigned bits = 1 + static_cast<unsigned>(in.below(kMostBits));
    const std::size_t count = in.below(1000);
    const std::vector<std::uint8_t> stream = in.bytes(packed(count, bits));
    std::vector<std::int64_t> found(count);
    unpack_bits(stream.data(), stream.size(), bits, count, found.data());
    if (bits <= 8) {
        const std::vector<float> table(std::size_t{1} << bits, 0.5f);
        std::vector<float> values(count);
        unpack_values(stream.data(), bits, count, table.data(), values.data());
    }
    std::vector<std::uint8_t> again(stream.size(), 0);
    pack_bits(found.data(), count, bits, again.data());
    if (count * bits % 8 == 0 && again != stream) __builtin_trap();
}

void levels(Input& in) {
    const unsigned bits = 2 + static_cast<unsigned>(in.below(7)), top = 1 + static_cast<unsigned>(in.below((1U << (bits - 1)) - 1));
    const std::size_t n = in.below(10000), size = 1 + in.below(600), buckets = (n + size - 1) / size;
    std::vector<std::vector<std::uint8_t>> streams;
    std::vector<std::vector<float>> units;
    std::vector<Coded> rows;
    for (std::size_t row = 0; row < 2; ++row) {
        streams.push_back(in.bytes(packed(n, bits)));
        units.emplace_back(buckets);
        for (float& unit : units.back()) unit = in.next<float>();
    }
    for (std::size_t row = 0; row < 2; ++row) rows.push_back({streams[row].data(), units[row].data()});
    std::vector<float> total(n);
    sum_levels(total.data(), n, rows, size, bits, top, in.below(2), in.below(2), in.next<float>());
    // Whatever a gradient holds, encoding it is safe.
    const Rounding how{static_cast<float>(top), bits, in.below(2) == 0, {in.next<std::uint32_t>(), in.next<std::uint32_t>()}};
    std::vector<float> scales(buckets);
    bucket_maxima(total.data(), n, size, scales.data());
    pack_rounded(total.data(), n, scales.data(), size, how, streams[0].data());
}

void entries(Input& in) {
    const std::size_t n = in.below(5000), k = in.below(200);
    std::vector<std::int64_t> places(k);
    for (auto& place : places) place = in.below(8) ? static_cast<std::int64_t>(in.below(6000)) : in.next<std::int64_t>();
    std::vector<float> total(n), values(k, 1.0f), taken(k);
    const Sent sent{places.data(), values.data(), k};
    take(total.data(), n, places.data(), k, taken.data());
    scatter_add(total.data(), n, sent);
    sum_entries(total.data(), n, {sent}, false, 1.0f);
    are_distinct({sent, sent}, n);
    std::vector<std::uint8_t> bitmap(packed(n, 1), 0);
    set_bits(places.data(), k, static_cast<unsigned>(in.below(20)), 1, bitmap.data(), n);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Input in(data, size);
    set_threads(1 + in.below(3));
    constexpr void (*kTargets[])(Input&) = {indices, bitmaps, codes, levels, entries};
    kTargets[in.below(std::size(kTargets))](in);
    return 0;
}
