// The kernels as functions of NumPy arrays: arithmetic, entry by entry.
#include <algorithm>
#include <vector>

#include <pybind11/stl.h>

#include "arrays.h"
#include "kernels.h"
#include "pool.h"

namespace hvd_compress {
namespace {

void scale_add(const Floats& x, const Floats& y, float decay, Floats out) {
    same_size(x, y);
    same_size(x, out);
    const float *a = x.data(), *b = y.data();
    float* to = out.mutable_data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    in_parts(n, [&](std::size_t at, std::size_t size) { kernels().scale_add(a + at, b + at, decay, to + at, size); });
}

void subtract(const Floats& x, const Floats& y, Floats out) {
    same_size(x, y);
    same_size(x, out);
    const float *a = x.data(), *b = y.data();
    float* to = out.mutable_data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    in_parts(n, [&](std::size_t at, std::size_t size) { kernels().subtract(a + at, b + at, to + at, size); });
}

void scale(const Floats& x, float factor, Floats out) {
    same_size(x, out);
    const float* a = x.data();
    float* to = out.mutable_data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    in_parts(n, [&](std::size_t at, std::size_t size) { kernels().scale(a + at, factor, to + at, size); });
}

void to_halves(const Floats& x, Array<std::uint16_t> out) {
    same_size(x, out);
    const float* from = x.data();
    std::uint16_t* to = out.mutable_data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    in_parts(n, [&](std::size_t at, std::size_t size) { kernels().to_half(from + at, to + at, size); });
}

void from_halves(const Array<std::uint16_t>& x, Floats out) {
    same_size(x, out);
    const std::uint16_t* from = x.data();
    float* to = out.mutable_data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    in_parts(n, [&](std::size_t at, std::size_t size) { kernels().from_half(from + at, to + at, size); });
}

bool all_finite(const Floats& x) {
    const float* a = x.data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    return in_all_parts(n, [=](std::size_t at, std::size_t size) { return kernels().all_finite(a + at, size); });
}

// Whether all of x + decay * y are finite.
bool sums_finite(const Floats& x, const Floats& y, float decay) {
    same_size(x, y);
    const float *a = x.data(), *b = y.data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    return in_all_parts(n, [=](std::size_t at, std::size_t size) { return kernels().sums_finite(a + at, b + at, decay, size); });
}

// New momentum and velocity of DGC, from arrays that may be those written to; with `check` only if all are finite, and returns
// whether it was done.
bool add_momentum(const Floats& x, const Floats& momentum, const Floats& velocity, float m, bool nesterov, Floats out_momentum,
                  Floats out_velocity, bool check) {
    for (const Floats* other : {&momentum, &velocity, &std::as_const(out_momentum), &std::as_const(out_velocity)})
        same_size(x, *other);
    const float *a = x.data(), *u = momentum.data(), *v = velocity.data();
    float *new_u = out_momentum.mutable_data(), *new_v = out_velocity.mutable_data();
    const std::size_t n = size_of(x);
    py::gil_scoped_release release;
    const bool finite = !check || in_all_parts(n, [=](std::size_t at, std::size_t size) {
        return kernels().momentum_finite(a + at, u + at, v + at, m, nesterov, size);
    });
    if (!finite) return false;
    in_parts(n, [=](std::size_t at, std::size_t size) {
        kernels().add_momentum(a + at, u + at, v + at, m, nesterov, new_u + at, new_v + at, size);
    });
    return true;
}

}  // namespace

void define_elementwise(py::module_& module) {
    const auto array = [] { return py::arg().noconvert(); };
    module.def("scale_add", &scale_add, array(), array(), py::arg(), array());
    module.def("subtract", &subtract, array(), array(), array());
    module.def("scale", &scale, array(), py::arg(), array());
    module.def("to_half", &to_halves, array(), array());
    module.def("from_half", &from_halves, array(), array());
    module.def("all_finite", &all_finite, array());
    module.def("sums_finite", &sums_finite, array(), array(), py::arg());
    module.def("add_momentum", &add_momentum, array(), array(), array(), py::arg(), py::arg(), array(), array(), py::arg());
}

}  // namespace hvd_compress

PYBIND11_MODULE(_kernels, module) {
    module.def("isa", [] { return hvd_compress::kernels().name; });
    module.def("threads", &hvd_compress::threads);
    module.def("set_threads", &hvd_compress::set_threads);
    hvd_compress::define_elementwise(module);
    hvd_compress::define_selection(module);
    hvd_compress::define_packing(module);
    hvd_compress::define_rows(module);
    hvd_compress::define_quantisation(module);
    hvd_compress::define_codes(module);
    hvd_compress::define_products(module);
}
