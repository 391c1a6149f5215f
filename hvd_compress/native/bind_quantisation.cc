// The kernels as functions of NumPy arrays: entries on levels.
#include <pybind11/stl.h>

#include "arrays.h"
#include "levels.h"
#include "pool.h"
#include "quantise.h"

namespace hvd_compress {
namespace {

std::size_t buckets_of(std::size_t n, std::size_t size) {
    require(size > 0, "a bucket has at least one entry");
    return (n + size - 1) / size;
}

void require_codes(unsigned bits, unsigned top) {
    require(bits >= 2 && bits <= 8 && top < 1U << (bits - 1), "levels do not fit the bits");
}

Floats maxima(const Floats& x, std::size_t size) {
    Floats out = new_array<float>(buckets_of(size_of(x), size));
    const float* from = x.data();
    float* to = out.mutable_data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    bucket_maxima(from, n, size, to);
    return out;
}

Bytes packed_rounded(const Floats& x, const Floats& scales, std::size_t size, unsigned top, unsigned bits, bool nearest,
                     std::uint32_t k0, std::uint32_t k1) {
    const std::size_t n = size_of(x);
    require(size_of(scales) == buckets_of(n, size), "not one scale for each bucket");
    require_codes(bits, top);
    Bytes packed = new_array<std::uint8_t>(packed_size(n, bits));
    const float *from = x.data(), *each = scales.data();
    std::uint8_t* to = packed.mutable_data();
    const Rounding how{static_cast<float>(top), bits, nearest, {k0, k1}};
    py::gil_scoped_release release;
    pack_rounded(from, n, each, size, how, to);
    return packed;
}

bool sum_coded(Floats x, const std::vector<std::pair<Bytes, Floats>>& rows, std::size_t size, unsigned top, unsigned bits,
               bool fresh, bool negate, float factor) {
    const std::size_t n = size_of(x);
    require_codes(bits, top);
    std::vector<Coded> all;
    for (const auto& [packed, units] : rows) {
        require(size_of(packed) == packed_size(n, bits), "the codes do not fit the array");
        require(size_of(units) == buckets_of(n, size), "not one unit for each bucket");
        all.push_back({packed.data(), units.data()});
    }
    float* to = x.mutable_data();
    py::gil_scoped_release release;
    return sum_levels(to, n, all, size, bits, top, fresh, negate, factor);
}

Line line_of(double base, double step, int last) {
    require(step > 0 && last >= 1 && last <= 127, "a line has a step and up to 128 levels");
    return {base, step, static_cast<double>(last)};
}

unsigned bits_of(const Line& line) {
    unsigned bits = 0;
    while (1 << bits <= static_cast<int>(line.last)) ++bits;
    return bits;
}

Indices nearest(const Floats& x, double base, double step, int last) {
    Indices codes = new_array<std::int64_t>(size_of(x));
    const Line line = line_of(base, step, last);
    const float* from = x.data();
    std::int64_t* to = codes.mutable_data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    in_parts(n, [=](std::size_t at, std::size_t size) {
        kernels().nearest_codes(from + at, size, line, bits_of(line), to + at);
    });
    return codes;
}

Floats values_of(const Indices& codes, float base, float step, int last) {
    Floats values = new_array<float>(size_of(codes));
    const unsigned bits = bits_of(line_of(base, 1.0, last));
    const std::int64_t* from = codes.data();
    float* to = values.mutable_data();
    const std::size_t n = size_of(codes);
    py::gil_scoped_release release;
    in_parts(n, [=](std::size_t at, std::size_t size) { kernels().code_values(from + at, size, base, step, bits, to + at); });
    return values;
}

std::tuple<double, double, double, double> sums(const Floats& x, double base, double step, int last, double low) {
    const Line line = line_of(base, step, last);
    const float* from = x.data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    const Sums found = level_sums(from, n, line, low);
    return {found.j, found.jj, found.d, found.jd};
}

}  // namespace

void define_quantisation(py::module_& module) {
    const auto array = [] { return py::arg().noconvert(); };
    module.def("bucket_maxima", &maxima, array(), py::arg());
    module.def("pack_rounded", &packed_rounded, array(), array(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg(),
               py::arg());
    module.def("sum_levels", &sum_coded, array(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg());
    module.def("nearest_codes", &nearest, array(), py::arg(), py::arg(), py::arg());
    module.def("code_values", &values_of, array(), py::arg(), py::arg(), py::arg());
    module.def("level_sums", &sums, array(), py::arg(), py::arg(), py::arg(), py::arg());
}

}  // namespace hvd_compress
