#include "memory.h"

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace hvd_compress {
namespace {

// Smaller arrays come from memory that malloc keeps itself.
constexpr std::size_t kSmallest = std::size_t{1} << 17;
// Bytes kept at most: what the entries of eight ranks take, 1 % of a hundred million. With a sanitizer none, because it sees
// only what is allocated and freed.
#if defined(HVD_COMPRESS_SANITIZED)
constexpr std::size_t kMost = 0;
#else
constexpr std::size_t kMost = std::size_t{1} << 26;
#endif

struct Piece {
    void* memory;
    std::size_t size;
};

struct Kept {
    // Only ever tried: whoever would have to wait, or inherits it locked after a fork, does without.
    std::mutex mutex;
    std::vector<Piece> pieces;
    std::size_t total = 0;

    void* remove(std::size_t place) {
        void* const memory = pieces[place].memory;
        total -= pieces[place].size;
        pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(place));
        return memory;
    }
};

Kept& kept() {
    // Never destroyed: arrays may outlive everything else in a process that ends.
    static Kept* const all = new Kept;
    return *all;
}

// Sizes that differ a little share their memory: four classes for each power of two.
std::size_t class_of(std::size_t nbytes) {
    std::size_t step = kSmallest / 4;
    while (step * 8 <= nbytes) step *= 2;
    return (nbytes + step - 1) / step * step;
}

}  // namespace

void* take_memory(std::size_t nbytes) {
    const bool large = nbytes >= kSmallest && kMost > 0;
    const std::size_t size = large ? class_of(nbytes) : nbytes;
    if (large) {
        const std::unique_lock<std::mutex> lock(kept().mutex, std::try_to_lock);
        if (lock) {
            for (std::size_t place = kept().pieces.size(); place-- > 0;)
                if (kept().pieces[place].size == size) return kept().remove(place);
        }
    }
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, size > 0 ? size : 1) != 0) throw std::bad_alloc();
    return memory;
}

void give_memory(void* memory, std::size_t nbytes) noexcept {
    const std::size_t size = class_of(nbytes);
    if (nbytes >= kSmallest && size <= kMost) {
        const std::unique_lock<std::mutex> lock(kept().mutex, std::try_to_lock);
        if (lock) {
            while (kept().total + size > kMost) std::free(kept().remove(0));
            try {
                kept().pieces.push_back({memory, size});
                kept().total += size;
                return;
            } catch (const std::bad_alloc&) {
            }
        }
    }
    std::free(memory);
}

}  // namespace hvd_compress
