// What the bindings share. Callers see to dtype and layout; the bindings check both, and every size, once more.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory.h"

namespace hvd_compress {

namespace py = pybind11;

template <typename T>
using Array = py::array_t<T, py::array::c_style>;
using Floats = Array<float>;
using Bytes = Array<std::uint8_t>;
using Indices = Array<std::int64_t>;

inline std::size_t size_of(const py::array& x) { return static_cast<std::size_t>(x.size()); }

template <typename T>
Array<T> new_array(std::size_t size) {
    struct Memory {
        void* start;
        std::size_t nbytes;
        explicit Memory(std::size_t wanted) : start(take_memory(wanted)), nbytes(wanted) {}
        ~Memory() { give_memory(start, nbytes); }
        Memory(const Memory&) = delete;
        Memory& operator=(const Memory&) = delete;
    };
    auto memory = std::make_unique<Memory>(size * sizeof(T));
    T* const start = static_cast<T*>(memory->start);
    const py::capsule owner(memory.get(), [](void* one) { delete static_cast<Memory*>(one); });
    memory.release();
    return Array<T>(static_cast<py::ssize_t>(size), start, owner);
}

inline void require(bool holds, const char* message) {
    if (!holds) throw py::value_error(message);
}

inline void same_size(const py::array& x, const py::array& y) {
    require(x.size() == y.size(), "arrays of different sizes");
}

// Bytes of so many codes.
inline std::size_t packed_size(std::size_t count, std::size_t bits) { return (count * bits + 7) / 8; }

void define_elementwise(py::module_& module);
void define_selection(py::module_& module);
void define_packing(py::module_& module);
void define_rows(py::module_& module);
void define_quantisation(py::module_& module);
void define_codes(py::module_& module);
void define_products(py::module_& module);

}  // namespace hvd_compress
