// The kernels as functions of NumPy arrays: integers as streams of bits.
#include <pybind11/stl.h>

#include "arrays.h"
#include "bits.h"

namespace hvd_compress {
namespace {

void require_bits(unsigned bits) { require(bits >= 1 && bits <= kMostBits, "bits must be in 1..57"); }

Bytes packed_bits(const Indices& codes, unsigned bits) {
    require_bits(bits);
    const std::size_t count = size_of(codes);
    Bytes packed = new_array<std::uint8_t>(packed_size(count, bits));
    const std::int64_t* from = codes.data();
    std::uint8_t* to = packed.mutable_data();
    py::gil_scoped_release release;
    pack_bits(from, count, bits, to);
    return packed;
}

Indices unpacked_bits(const Bytes& packed, unsigned bits, std::size_t count) {
    require_bits(bits);
    require(size_of(packed) >= packed_size(count, bits), "too few bytes for the codes");
    Indices codes = new_array<std::int64_t>(count);
    const std::uint8_t* from = packed.data();
    std::int64_t* to = codes.mutable_data();
    const std::size_t nbytes = size_of(packed);
    py::gil_scoped_release release;
    unpack_bits(from, nbytes, bits, count, to);
    return codes;
}

Floats unpacked_values(const Bytes& packed, unsigned bits, std::size_t count, const Floats& table) {
    require(bits >= 1 && bits <= 8, "bits must be in 1..8");
    require(size_of(packed) >= packed_size(count, bits), "too few bytes for the codes");
    require(size_of(table) == std::size_t{1} << bits, "a table has a value for each code");
    Floats values = new_array<float>(count);
    const std::uint8_t* from = packed.data();
    const float* each = table.data();
    float* to = values.mutable_data();
    py::gil_scoped_release release;
    unpack_values(from, bits, count, each, to);
    return values;
}

Bytes packed_positions(const Indices& positions, std::size_t length) {
    Bytes bitmap = new_array<std::uint8_t>(packed_size(length, 1));
    const std::int64_t* from = positions.data();
    std::uint8_t* to = bitmap.mutable_data();
    const std::size_t count = size_of(positions), nbytes = size_of(bitmap);
    bool good;
    {
        py::gil_scoped_release release;
        std::fill(to, to + nbytes, std::uint8_t{0});
        good = set_bits(from, count, 0, 0, to, length);
    }
    if (!good) throw py::index_error("a position is out of range");
    return bitmap;
}

Indices unpacked_positions(const Bytes& bitmap) {
    const std::uint8_t* from = bitmap.data();
    const std::size_t nbytes = size_of(bitmap);
    std::size_t count;
    {
        py::gil_scoped_release release;
        count = count_ones(from, nbytes);
    }
    Indices positions = new_array<std::int64_t>(count);
    std::int64_t* to = positions.mutable_data();
    py::gil_scoped_release release;
    find_ones(from, nbytes, to);
    return positions;
}

Bytes packed_rising(const Indices& indices, unsigned low, std::size_t length) {
    require(low <= kMostBits, "low bits must be in 0..57");
    const std::size_t count = size_of(indices), lows = packed_size(count, low);
    Bytes packed = new_array<std::uint8_t>(lows + packed_size(length, 1));
    const std::int64_t* from = indices.data();
    std::uint8_t* to = packed.mutable_data();
    const std::size_t nbytes = size_of(packed);
    bool good;
    {
        py::gil_scoped_release release;
        if (low) pack_bits(from, count, low, to);
        std::fill(to + lows, to + nbytes, std::uint8_t{0});
        good = set_bits(from, count, low, 1, to + lows, length);
    }
    if (!good) throw py::index_error("an index is out of range");
    return packed;
}

std::pair<Indices, int> unpacked_rising(const Bytes& packed, std::int64_t n, std::size_t k, unsigned low) {
    require(low <= kMostBits, "low bits must be in 0..57");
    const std::size_t nbytes = size_of(packed), lows = packed_size(k, low);
    require(nbytes >= lows, "too few bytes for the indices");
    Indices indices = new_array<std::int64_t>(k);
    const std::uint8_t* from = packed.data();
    std::int64_t* to = indices.mutable_data();
    Fault fault;
    {
        py::gil_scoped_release release;
        fault = unpack_rising(from, from + lows, lows, nbytes - lows, low, n, k, to);
    }
    return {indices, static_cast<int>(fault)};
}

}  // namespace

void define_packing(py::module_& module) {
    const auto array = [] { return py::arg().noconvert(); };
    module.def("pack_bits", &packed_bits, array(), py::arg());
    module.def("unpack_bits", &unpacked_bits, array(), py::arg(), py::arg());
    module.def("unpack_values", &unpacked_values, array(), py::arg(), py::arg(), array());
    module.def("pack_positions", &packed_positions, array(), py::arg());
    module.def("unpack_positions", &unpacked_positions, array());
    module.def("pack_rising", &packed_rising, array(), py::arg(), py::arg());
    module.def("unpack_rising", &unpacked_rising, array(), py::arg(), py::arg(), py::arg());
}

}  // namespace hvd_compress
