#include "products.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace hvd_compress {
namespace {

// What one thread works on at once stays in its nearest cache: rows and columns of the result, and entries of a sum.
constexpr std::size_t kTall = 16, kWide = 512, kDeep = 8, kLong = 512;
// Entries of a sum that are one part; the sums of several are added up.
constexpr std::size_t kSlice = 256;
// Columns of a result that has few: loops along them would be too short.
constexpr std::size_t kFew = 64;
static_assert(kDeep % kTerms == 0 && kSlice % kDeep == 0 && kLong % kLanes == 0);

std::size_t parts(std::size_t n, std::size_t size) { return (n + size - 1) / size; }
std::size_t filled(std::size_t n, std::size_t size) { return parts(n, size) * size; }

// For a result with few columns: each of its entries is a sum along a row of x.
void by_sums(const Factor& x, const Factor& y, double unit, float* out) {
    const std::size_t depth = x.columns, length = filled(depth, kLanes), columns = filled(y.columns, kTerms);
    const std::size_t together = std::max<std::size_t>(1, kPart / std::max<std::size_t>(1, depth));
    std::vector<double> turned(columns * length), row(y.columns);
    for (std::size_t k = 0; k < depth; ++k) {
        kernels().to_integers(y.entries + k * y.columns, y.columns, y.inverse, row.data());
        for (std::size_t j = 0; j < y.columns; ++j) turned[j * length + k] = row[j];
    }
    parallel(parts(x.rows, together), [&](std::size_t part) {
        const std::size_t first = part * together, rows = std::min(together, x.rows - first);
        double piece[kLong];
        std::vector<double> sums(rows * columns);
        for (std::size_t k = 0; k < depth; k += kLong) {
            const std::size_t size = std::min(kLong, depth - k), whole = filled(size, kLanes);
            std::fill(piece + size, piece + whole, 0.0);
            for (std::size_t i = 0; i < rows; ++i) {
                kernels().to_integers(x.entries + (first + i) * depth + k, size, x.inverse, piece);
                for (std::size_t j = 0; j < columns; j += kTerms)
                    kernels().add_sums(piece, &turned[j * length + k], length, whole, &sums[i * columns + j]);
            }
        }
        for (std::size_t i = 0; i < rows; ++i)
            kernels().scale_sums(&sums[i * columns], y.columns, unit, out + (first + i) * y.columns);
    });
}

// For a result with long rows: each of them is a sum of multiples of the rows of y.
void by_rows(const Factor& x, const Factor& y, double unit, float* out) {
    const std::size_t depth = y.rows, length = filled(depth, kTerms), columns = y.columns;
    const std::size_t slices = std::max<std::size_t>(1, parts(depth, kSlice)), across = parts(columns, kWide);
    std::vector<double> left(x.rows * length), total(slices > 1 ? x.rows * columns : 0);
    for (std::size_t i = 0; i < x.rows; ++i)
        kernels().to_integers(x.entries + i * depth, depth, x.inverse, left.data() + i * length);
    std::mutex turn;
    parallel(parts(x.rows, kTall) * slices * across, [&](std::size_t part) {
        const std::size_t column = part % across * kWide, width = std::min(kWide, columns - column);
        const std::size_t start = part / across % slices * kSlice, end = std::min(start + kSlice, depth);
        const std::size_t first = part / across / slices * kTall, rows = std::min(kTall, x.rows - first);
        double block[kDeep * kWide], sums[kTall * kWide];
        std::fill(sums, sums + rows * kWide, 0.0);
        for (std::size_t k = start; k < end; k += kDeep) {
            const std::size_t deep = std::min(kDeep, end - k), whole = filled(deep, kTerms);
            for (std::size_t n = 0; n < deep; ++n)
                kernels().to_integers(y.entries + (k + n) * columns + column, width, y.inverse, block + n * kWide);
            std::fill(block + deep * kWide, block + whole * kWide, 0.0);
            for (std::size_t i = 0; i < rows; ++i)
                for (std::size_t n = 0; n < whole; n += kTerms)
                    kernels().add_rows(&left[(first + i) * length + k + n], block + n * kWide, kWide, width, sums + i * kWide);
        }
        if (slices == 1) {
            for (std::size_t i = 0; i < rows; ++i)
                kernels().scale_sums(sums + i * kWide, width, unit, out + (first + i) * columns + column);
            return;
        }
        const std::lock_guard<std::mutex> lock(turn);
        for (std::size_t i = 0; i < rows; ++i)
            for (std::size_t j = 0; j < width; ++j) total[(first + i) * columns + column + j] += sums[i * kWide + j];
    });
    in_parts(total.size(), [&](std::size_t at, std::size_t size) {
        kernels().scale_sums(total.data() + at, size, unit, out + at);
    });
}

}  // namespace

void product(const Factor& x, const Factor& y, double unit, float* out) {
    const bool narrow = y.columns <= kFew && y.columns < y.rows;
    (narrow ? by_sums : by_rows)(x, y, unit, out);
}

}  // namespace hvd_compress
