// Numbers 0, 1 and 2, of two bits each and five in a byte, on all threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd_compress {

// ceil(count / 5) bytes from ceil(2 * count / 8), each number times a power of 3, the first one lowest.
void pack_trits(const std::uint8_t* pairs, std::size_t count, std::uint8_t* out);

// Undoes pack_trits; false if a byte is above 242.
bool unpack_trits(const std::uint8_t* packed, std::size_t count, std::uint8_t* pairs);

}  // namespace hvd_compress
