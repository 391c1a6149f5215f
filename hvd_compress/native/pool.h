// A persistent pool of threads that share out ranges.
#pragma once

#include <cstddef>
#include <functional>

namespace hvd_compress {

// Threads in use, the caller's own included.
std::size_t threads();
void set_threads(std::size_t count);

// Calls work(part) for each part below `parts`, on all threads, and returns when all are done.
void parallel(std::size_t parts, const std::function<void(std::size_t)>& work);

// Number of parts that n entries are worth, and where a part begins. The same for any number of threads.
constexpr std::size_t kPart = std::size_t{1} << 16;
inline std::size_t parts_of(std::size_t n) { return (n + kPart - 1) / kPart; }

}  // namespace hvd_compress
