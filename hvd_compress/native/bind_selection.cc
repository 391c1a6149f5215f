// The kernels as functions of NumPy arrays: which entries, and getting at them.
#include <algorithm>
#include <vector>

#include <pybind11/stl.h>

#include "allocate.h"
#include "arrays.h"
#include "entries.h"
#include "kernels.h"
#include "pool.h"
#include "select.h"

namespace hvd_compress {
namespace {

Indices count_magnitudes(const Floats& x, unsigned shift, std::size_t bins) {
    require(shift <= 31 && bins == std::size_t{1} << (31 - shift), "bins do not fit the shift");
    Indices counts = new_array<std::int64_t>(bins);
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

Indices largest_indices(const Floats& x, std::size_t k) {
    const std::size_t n = size_of(x);
    require(k <= n && n <= UINT32_MAX, "k must be at most n, and n below 2**32");
    Indices indices = new_array<std::int64_t>(k);
    std::int64_t* to = indices.mutable_data();
    const float* a = x.data();
    py::gil_scoped_release release;
    largest(a, n, k, to);
    return indices;
}

Indices accumulated_largest(const Floats& x, Floats residual, float decay, std::size_t k) {
    const std::size_t n = size_of(x);
    same_size(x, residual);
    require(k > 0 && k <= n && n <= UINT32_MAX, "k must be at least 1 and at most n, and n below 2**32");
    Indices indices = new_array<std::int64_t>(k);
    std::int64_t* to = indices.mutable_data();
    const float* a = x.data();
    float* e = residual.mutable_data();
    py::gil_scoped_release release;
    accumulate_largest(a, e, decay, n, k, to);
    return indices;
}

std::size_t counted(const Floats& x, std::uint32_t least) {
    const float* a = x.data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    return count_at_least(a, n, least);
}

Indices indices_at_least(const Floats& x, std::uint32_t least, std::uint32_t below) {
    const std::size_t n = size_of(x);
    require(n <= UINT32_MAX, "n must be below 2**32");
    const float* a = x.data();
    Indices indices;
    {
        py::gil_scoped_release release;
        at_least(a, n, least, below, [&](std::size_t count) {
            py::gil_scoped_acquire acquire;
            indices = new_array<std::int64_t>(count);
            return indices.mutable_data();
        });
    }
    return indices;
}

template <typename T>
Array<T> take_entries(const Array<T>& x, const Indices& indices) {
    Array<T> out = new_array<T>(size_of(indices));
    const T* from = x.data();
    const std::int64_t* places = indices.data();
    T* to = out.mutable_data();
    const std::size_t n = size_of(x), count = size_of(indices);
    bool good;
    {
        py::gil_scoped_release release;
        good = take(from, n, places, count, to);
    }
    if (!good) throw py::index_error("an index is out of range");
    return out;
}

std::pair<Indices, Indices> strata(std::size_t n, std::size_t k, std::uint32_t k0, std::uint32_t k1) {
    require(k <= n && n <= UINT32_MAX, "k must be at most n, and n below 2**32");
    Indices indices = new_array<std::int64_t>(k), sizes = new_array<std::int64_t>(k);
    std::int64_t *to = indices.mutable_data(), *each = sizes.mutable_data();
    {
        py::gil_scoped_release release;
        in_parts(k, [=](std::size_t at, std::size_t count) {
            kernels().draw_strata(at, count, n, k, {k0, k1}, to + at, each + at);
        });
    }
    return {indices, sizes};
}

Sent sent_of(const Indices& indices, const Floats& values) {
    same_size(indices, values);
    return {indices.data(), values.data(), size_of(indices)};
}

std::vector<Sent> all_sent(const std::vector<std::pair<Indices, Floats>>& rows) {
    std::vector<Sent> all;
    for (const auto& [indices, values] : rows) all.push_back(sent_of(indices, values));
    return all;
}

void add_entries(Floats x, const Indices& indices, const Floats& values) {
    const Sent sent = sent_of(indices, values);
    float* to = x.mutable_data();
    const std::size_t n = size_of(x);
    bool good;
    {
        py::gil_scoped_release release;
        good = scatter_add(to, n, sent);
    }
    if (!good) throw py::index_error("an index is out of range");
}

void sum_rows(Floats x, const std::vector<std::pair<Indices, Floats>>& rows, bool fresh, float factor) {
    const std::vector<Sent> all = all_sent(rows);
    float* to = x.mutable_data();
    const std::size_t n = size_of(x);
    bool good;
    {
        py::gil_scoped_release release;
        good = sum_entries(to, n, all, fresh, factor);
    }
    if (!good) throw py::index_error("an index is out of range, or the indices do not rise");
}

bool distinct(const std::vector<Indices>& parts, std::size_t n) {
    std::vector<Sent> all;
    for (const Indices& part : parts) all.push_back({part.data(), nullptr, size_of(part)});
    Distinct found;
    {
        py::gil_scoped_release release;
        found = are_distinct(all, n);
    }
    if (found == Distinct::outside) throw py::index_error("an index is out of range, or the indices do not rise");
    return found == Distinct::yes;
}

// Bits of the largest magnitude, and indices and values of the entries of each width.
std::pair<std::uint32_t, std::vector<std::pair<Indices, Floats>>> allocated(const Floats& x,
                                                                           const Ratios& ratios,
                                                                           std::size_t most, std::size_t limit,
                                                                           bool codes_alone) {
    const std::size_t n = size_of(x);
    require(n <= UINT32_MAX, "n must be below 2**32");
    require(ratios[0] == 1 && std::is_sorted(ratios.begin(), ratios.end()), "ratios must begin with 1 and not fall");
    const float* a = x.data();
    Allocation found;
    {
        py::gil_scoped_release release;
        found = allocate(a, {n, most, limit, codes_alone}, ratios);
    }
    std::vector<std::pair<Indices, Floats>> chosen;
    for (std::size_t level = 0; level < kWidths; ++level) {
        std::size_t count = 0;
        for (const auto& part : found.parts) count += part[level].size();
        Indices indices = new_array<std::int64_t>(count);
        Floats values = new_array<float>(count);
        std::int64_t* place = indices.mutable_data();
        float* value = values.mutable_data();
        for (const auto& part : found.parts) {
            place = std::copy(part[level].begin(), part[level].end(), place);
            for (const std::uint32_t index : part[level]) *value++ = a[index];
        }
        chosen.emplace_back(std::move(indices), std::move(values));
    }
    return {found.largest, std::move(chosen)};
}

}  // namespace

void define_selection(py::module_& module) {
    const auto array = [] { return py::arg().noconvert(); };
    module.def("count_magnitudes", &count_magnitudes, array(), py::arg(), py::arg());
    module.def("largest", &largest_indices, array(), py::arg());
    module.def("accumulate_largest", &accumulated_largest, array(), array(), py::arg(), py::arg());
    module.def("at_least", &indices_at_least, array(), py::arg(), py::arg());
    module.def("allocate", &allocated, array(), py::arg(), py::arg(), py::arg(), py::arg());
    module.def("count_at_least", &counted, array(), py::arg());
    module.def("take", &take_entries<float>, array(), array());
    module.def("take", &take_entries<std::int64_t>, array(), array());
    module.def("draw_strata", &strata, py::arg(), py::arg(), py::arg(), py::arg());
    module.def("scatter_add", &add_entries, array(), array(), array());
    module.def("sum_entries", &sum_rows, array(), py::arg(), py::arg(), py::arg());
    module.def("are_distinct", &distinct, py::arg(), py::arg());
}

}  // namespace hvd_compress
