// Integers as streams of bits, least significant bit of each byte first, on all threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd_compress {

// Bits of an entry that unpack_bits takes at most.
constexpr unsigned kMostBits = 57;

// Entry i becomes bits [i * bits, (i + 1) * bits) of `out`, ceil(count * bits / 8) bytes; bits <= kMostBits.
void pack_bits(const std::int64_t* codes, std::size_t count, unsigned bits, std::uint8_t* out);
void unpack_bits(const std::uint8_t* packed, std::size_t nbytes, unsigned bits, std::size_t count, std::int64_t* codes);

// out[i] = table[code i], of 2**bits values; bits <= 8.
void unpack_values(const std::uint8_t* packed, unsigned bits, std::size_t count, const float* table, float* out);

// Sets the bits at (indices[i] >> low) + i * spread of zeroed `out`; false if one is not in [0, length).
bool set_bits(const std::int64_t* indices, std::size_t count, unsigned low, std::int64_t spread, std::uint8_t* out,
              std::size_t length);

// What is wrong with a packed sequence of indices.
enum class Fault { none, count, order, range };

// Indices below n: k ones of the bitmap `high`, the i-th at (indices[i] >> low) + i, and the low bits as by pack_bits;
// low <= kMostBits.
Fault unpack_rising(const std::uint8_t* lows, const std::uint8_t* high, std::size_t lows_nbytes, std::size_t high_nbytes,
                    unsigned low, std::int64_t n, std::size_t k, std::int64_t* indices);

std::size_t count_ones(const std::uint8_t* packed, std::size_t nbytes);
// Rising positions of all ones.
void find_ones(const std::uint8_t* packed, std::size_t nbytes, std::int64_t* positions);

}  // namespace hvd_compress
