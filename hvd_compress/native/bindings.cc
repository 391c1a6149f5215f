// The kernels as functions of NumPy arrays. Callers see to dtype and layout; here both are checked once more.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <vector>

#include "kernels.h"
#include "pool.h"
#include "select.h"

namespace py = pybind11;
using namespace hvd_compress;

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style>;
using Floats = Array<float>;

std::size_t size_of(const py::array& x) { return static_cast<std::size_t>(x.size()); }

void same_size(const py::array& x, const py::array& y) {
    if (x.size() != y.size()) throw py::value_error("arrays of different sizes");
}

template <typename Loop>
void in_parts(std::size_t n, const Loop& loop) {
    parallel(parts_of(n), [&](std::size_t part) {
        const std::size_t begin = part * kPart;
        loop(begin, std::min(kPart, n - begin));
    });
}

// Calls loop(x, y, out, n) for parts of three arrays of one size.
template <typename Loop>
void in_parts(const Floats& x, const Floats& y, Floats& out, const Loop& loop) {
    same_size(x, y);
    same_size(x, out);
    const float *a = x.data(), *b = y.data();
    float* to = out.mutable_data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    in_parts(n, [&](std::size_t at, std::size_t size) { loop(a + at, b + at, to + at, size); });
}

void scale_add(const Floats& x, const Floats& y, float decay, Floats out) {
    in_parts(x, y, out, [decay](const float* a, const float* b, float* to, std::size_t n) {
        kernels().scale_add(a, b, decay, to, n);
    });
}

void subtract(const Floats& x, const Floats& y, Floats out) { in_parts(x, y, out, kernels().subtract); }

bool all_finite(const Floats& x) {
    const float* a = x.data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    std::vector<char> good(parts_of(n), 1);
    in_parts(n, [&](std::size_t at, std::size_t size) { good[at / kPart] = kernels().all_finite(a + at, size); });
    return std::all_of(good.begin(), good.end(), [](char one) { return one; });
}

Array<std::int64_t> count_magnitudes(const Floats& x, unsigned shift, std::size_t bins) {
    if (shift > 31 || bins != std::size_t{1} << (31 - shift)) throw py::value_error("bins do not fit the shift");
    Array<std::int64_t> counts(static_cast<py::ssize_t>(bins));
    std::int64_t* to = counts.mutable_data();
    const float* a = x.data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    std::fill(to, to + bins, 0);
    // Integers add up to the same whatever the order.
    const std::size_t shares = std::max<std::size_t>(1, std::min(threads(), parts_of(n)));
    std::vector<std::vector<std::int64_t>> own(shares, std::vector<std::int64_t>(bins, 0));
    parallel(shares, [&](std::size_t share) {
        const std::size_t begin = n * share / shares, end = n * (share + 1) / shares;
        kernels().count_magnitudes(a + begin, end - begin, shift, own[share].data());
    });
    for (const auto& part : own)
        for (std::size_t bin = 0; bin < bins; ++bin) to[bin] += part[bin];
    return counts;
}

Array<std::int64_t> largest_indices(const Floats& x, std::size_t k) {
    const std::size_t n = size_of(x);
    if (k > n || n > UINT32_MAX) throw py::value_error("k must be at most n, and n below 2**32");
    Array<std::int64_t> indices(static_cast<py::ssize_t>(k));
    std::int64_t* to = indices.mutable_data();
    const float* a = x.data();
    py::gil_scoped_release release;
    largest(a, n, k, to);
    return indices;
}

Array<std::int64_t> indices_at_least(const Floats& x, std::uint32_t least) {
    const std::size_t n = size_of(x);
    if (n > UINT32_MAX) throw py::value_error("n must be below 2**32");
    const float* a = x.data();
    std::vector<Entry> found;
    {
        py::gil_scoped_release release;
        found = at_least(a, n, least);
    }
    Array<std::int64_t> indices(static_cast<py::ssize_t>(found.size()));
    std::int64_t* to = indices.mutable_data();
    for (const Entry& entry : found) *to++ = entry.index;
    return indices;
}

std::uint32_t check_word(const Array<std::uint32_t>& words) {
    const std::uint32_t* a = words.data();
    const std::size_t n = size_of(words);
    py::gil_scoped_release release;
    std::vector<std::uint32_t> sums(parts_of(n), 0);
    in_parts(n, [&](std::size_t at, std::size_t size) { sums[at / kPart] = kernels().check_word(a + at, size, at); });
    std::uint32_t sum = 0;
    for (const std::uint32_t part : sums) sum += part;
    return sum;
}

}  // namespace

PYBIND11_MODULE(_kernels, module) {
    module.def("isa", [] { return kernels().name; });
    module.def("threads", &threads);
    module.def("set_threads", &set_threads);
    module.def("scale_add", &scale_add, py::arg().noconvert(), py::arg().noconvert(), py::arg(), py::arg().noconvert());
    module.def("subtract", &subtract, py::arg().noconvert(), py::arg().noconvert(), py::arg().noconvert());
    module.def("all_finite", &all_finite, py::arg().noconvert());
    module.def("count_magnitudes", &count_magnitudes, py::arg().noconvert(), py::arg(), py::arg());
    module.def("largest", &largest_indices, py::arg().noconvert(), py::arg());
    module.def("at_least", &indices_at_least, py::arg().noconvert(), py::arg());
    module.def("check_word", &check_word, py::arg().noconvert());
}
