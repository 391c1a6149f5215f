// A persistent pool of threads that share out ranges.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace hvd_compress {

// Threads in use, the caller's own included.
std::size_t threads();
void set_threads(std::size_t count);

// Calls work(part) for each part below `parts`, on all threads, and returns when all are done.
void parallel(std::size_t parts, const std::function<void(std::size_t)>& work);

// Number of parts that n entries are worth, and where a part begins. The same for any number of threads.
constexpr std::size_t kPart = std::size_t{1} << 16;
inline std::size_t parts_of(std::size_t n) { return (n + kPart - 1) / kPart; }

// Calls loop(begin, size) for each part of n entries; `begin` is a multiple of kPart.
template <typename Loop>
void in_parts(std::size_t n, const Loop& loop) {
    parallel(parts_of(n), [&](std::size_t part) {
        const std::size_t begin = part * kPart;
        loop(begin, std::min(kPart, n - begin));
    });
}

// Whether good(begin, size) holds for all parts of n entries.
template <typename Good>
bool in_all_parts(std::size_t n, const Good& good) {
    std::vector<char> each(parts_of(n), 1);
    in_parts(n, [&](std::size_t begin, std::size_t size) { each[begin / kPart] = good(begin, size); });
    return std::all_of(each.begin(), each.end(), [](char one) { return one; });
}

}  // namespace hvd_compress
