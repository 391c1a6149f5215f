// The kernels as functions of NumPy arrays: signs, sums of magnitudes, powers of two, codes that a table explains.
#include <pybind11/stl.h>

#include "arrays.h"
#include "kernels.h"
#include "pool.h"
#include "quantise.h"
#include "sums.h"
#include "trits.h"

namespace hvd_compress {
namespace {

Bytes packed_negative(const Floats& x, bool zero) {
    const std::size_t n = size_of(x);
    Bytes packed = new_array<std::uint8_t>(packed_size(n, 1));
    const float* from = x.data();
    std::uint8_t* to = packed.mutable_data();
    py::gil_scoped_release release;
    in_parts(n, [=](std::size_t at, std::size_t size) { kernels().pack_negative(from + at, size, zero, to + at / 8); });
    return packed;
}

void signs_of(const Floats& x, Floats out) {
    same_size(x, out);
    const std::size_t n = size_of(x);
    const float* from = x.data();
    float* to = out.mutable_data();
    py::gil_scoped_release release;
    in_parts(n, [=](std::size_t at, std::size_t size) { kernels().signs(from + at, to + at, size); });
}

Array<double> sums_of(const Floats& x, std::size_t size, const std::vector<int>& terms) {
    const std::size_t n = size_of(x);
    require(size > 0, "a bucket has at least one entry");
    std::vector<Term> each;
    for (const int term : terms) {
        require(term >= 0 && term <= static_cast<int>(Term::negative), "no such term");
        each.push_back(static_cast<Term>(term));
    }
    Array<double> sums = new_array<double>(each.size() * ((n + size - 1) / size));
    const float* from = x.data();
    double* to = sums.mutable_data();
    py::gil_scoped_release release;
    magnitude_sums(from, n, size, each, to);
    return sums;
}

Bytes codes_of_powers(const Floats& x, int offset, std::uint32_t k0, std::uint32_t k1) {
    const std::size_t n = size_of(x);
    Bytes codes = new_array<std::uint8_t>(n);
    const float* from = x.data();
    std::uint8_t* to = codes.mutable_data();
    const Key key{k0, k1};
    py::gil_scoped_release release;
    in_parts(n, [=](std::size_t at, std::size_t size) {
        kernels().power_codes(from + at, size, static_cast<std::uint32_t>(at), offset, key, to + at);
    });
    return codes;
}

void sum_tabled(Floats x, const std::vector<std::pair<Bytes, Floats>>& rows, unsigned bits, std::size_t size, bool fresh,
                bool negate, float factor) {
    const std::size_t n = size_of(x);
    require(size > 0, "a bucket has at least one entry");
    require(bits >= 1 && bits <= 8, "bits must be in 1..8");
    std::vector<Tabled> all;
    for (const auto& [packed, tables] : rows) {
        require(size_of(packed) >= packed_size(n, bits), "too few bytes for the codes");
        require(size_of(tables) >= (n + size - 1) / size << bits, "a table has a value for each code");
        all.push_back({packed.data(), tables.data()});
    }
    float* to = x.mutable_data();
    py::gil_scoped_release release;
    sum_codes(to, n, all, size, bits, fresh, negate, factor);
}

Bytes packed_trits(const Bytes& pairs, std::size_t count) {
    require(size_of(pairs) >= packed_size(count, 2), "too few bytes for the numbers");
    Bytes packed = new_array<std::uint8_t>((count + 4) / 5);
    const std::uint8_t* from = pairs.data();
    std::uint8_t* to = packed.mutable_data();
    py::gil_scoped_release release;
    pack_trits(from, count, to);
    return packed;
}

std::pair<Bytes, bool> unpacked_trits(const Bytes& packed, std::size_t count) {
    require(size_of(packed) >= (count + 4) / 5, "too few bytes for the numbers");
    Bytes pairs = new_array<std::uint8_t>(packed_size(count, 2));
    const std::uint8_t* from = packed.data();
    std::uint8_t* to = pairs.mutable_data();
    bool good;
    {
        py::gil_scoped_release release;
        good = unpack_trits(from, count, to);
    }
    return {pairs, good};
}

}  // namespace

void define_codes(py::module_& module) {
    const auto array = [] { return py::arg().noconvert(); };
    module.def("pack_negative", &packed_negative, array(), py::arg());
    module.def("signs", &signs_of, array(), array());
    module.def("magnitude_sums", &sums_of, array(), py::arg(), py::arg());
    module.def("power_codes", &codes_of_powers, array(), py::arg(), py::arg(), py::arg());
    module.def("sum_codes", &sum_tabled, array(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg());
    module.def("pack_trits", &packed_trits, array(), py::arg());
    module.def("unpack_trits", &unpacked_trits, array(), py::arg());
}

}  // namespace hvd_compress
