// The kernels as functions of NumPy arrays: rows of bytes that end with a check word and a tag.
#include <pybind11/stl.h>

#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "kernels.h"
#include "pool.h"

namespace hvd_compress {
namespace {

using Word = std::uint32_t;

Word check_word(const std::uint8_t* bytes, std::size_t nbytes) {
    const std::size_t n = nbytes / sizeof(Word);
    std::vector<Word> sums(parts_of(n), 0);
    in_parts(n, [&](std::size_t at, std::size_t size) {
        sums[at / kPart] = kernels().check_word(reinterpret_cast<const Word*>(bytes) + at, size, at);
    });
    return std::accumulate(sums.begin(), sums.end(), Word{0});
}

Bytes sealed_row(const std::vector<Bytes>& sections, Word tag) {
    std::size_t length = 0;
    for (const Bytes& section : sections) length += size_of(section);
    const std::size_t filled = (length + 7) / 8 * 8;
    Bytes row = new_array<std::uint8_t>(filled + 2 * sizeof(Word));
    std::uint8_t* to = row.mutable_data();
    std::vector<std::pair<const std::uint8_t*, std::size_t>> from;
    for (const Bytes& section : sections) from.emplace_back(section.data(), size_of(section));
    py::gil_scoped_release release;
    std::uint8_t* end = to;
    for (const auto& [bytes, size] : from) end = std::copy(bytes, bytes + size, end);
    std::fill(end, to + filled, std::uint8_t{0});
    const Word seal[] = {check_word(to, filled), tag};
    std::memcpy(to + filled, seal, sizeof seal);
    return row;
}

// Whether check word and tag at the end of `size` bytes fit.
std::pair<bool, bool> fits(const std::uint8_t* bytes, std::size_t size, Word tag) {
    std::vector<Word> aligned;
    if (reinterpret_cast<std::uintptr_t>(bytes) % sizeof(Word) != 0) {
        aligned.resize(size / sizeof(Word));
        std::memcpy(aligned.data(), bytes, size);
        bytes = reinterpret_cast<const std::uint8_t*>(aligned.data());
    }
    Word seal[2];
    const std::size_t filled = size - sizeof seal;
    std::memcpy(seal, bytes + filled, sizeof seal);
    return {check_word(bytes, filled) == seal[0], tag == seal[1]};
}

bool is_row(std::size_t size) { return size >= 2 * sizeof(Word) && size % sizeof(Word) == 0; }

std::pair<bool, bool> seal_fits(const Bytes& row, Word tag) {
    const std::size_t size = size_of(row);
    require(is_row(size), "a row ends with a seal of 8 bytes, after words of 4");
    const std::uint8_t* bytes = row.data();
    py::gil_scoped_release release;
    return fits(bytes, size, tag);
}

// Whether there are `count` rows of `nbytes` that begin with `head` and end with the seal.
bool rows_fit(const Bytes& rows, std::size_t count, std::size_t nbytes, const std::string& head, Word tag) {
    const std::size_t size = size_of(rows);
    if (!is_row(nbytes) || nbytes < head.size() + 2 * sizeof(Word) || size / nbytes != count || size % nbytes != 0) return false;
    const std::uint8_t* bytes = rows.data();
    py::gil_scoped_release release;
    for (std::size_t at = 0; at < size; at += nbytes)
        if (std::memcmp(bytes + at, head.data(), head.size()) != 0 || fits(bytes + at, nbytes, tag) != std::pair(true, true))
            return false;
    return true;
}

}  // namespace

void define_rows(py::module_& module) {
    module.def("seal_row", &sealed_row, py::arg().noconvert(), py::arg());
    module.def("seal_fits", &seal_fits, py::arg().noconvert(), py::arg());
    module.def("rows_fit", &rows_fit, py::arg().noconvert(), py::arg(), py::arg(), py::arg(), py::arg());
}

}  // namespace hvd_compress
