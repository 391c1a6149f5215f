// The kernels as functions of NumPy arrays: products of matrices.
#include "arrays.h"
#include "products.h"

namespace hvd_compress {
namespace {

Factor factor_of(const Floats& x, float inverse) {
    require(x.ndim() == 2, "a matrix has two dimensions");
    return {x.data(), static_cast<std::size_t>(x.shape(0)), static_cast<std::size_t>(x.shape(1)), inverse};
}

void multiply(const Floats& x, const Floats& y, float x_inverse, float y_inverse, double unit, Floats out) {
    const Factor left = factor_of(x, x_inverse), right = factor_of(y, y_inverse);
    require(left.columns == right.rows, "matrices that do not fit each other");
    require(size_of(out) == left.rows * right.columns, "the result does not fit its room");
    float* to = out.mutable_data();
    py::gil_scoped_release release;
    product(left, right, unit, to);
}

}  // namespace

void define_products(py::module_& module) {
    const auto array = [] { return py::arg().noconvert(); };
    module.def("product", &multiply, array(), array(), py::arg(), py::arg(), py::arg(), array());
}

}  // namespace hvd_compress
