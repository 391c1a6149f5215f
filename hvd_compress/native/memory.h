// Memory of new arrays.
#pragma once

#include <cstddef>

namespace hvd_compress {

// At least so many bytes, not zeroed, as after malloc; throws std::bad_alloc. What large arrays leave behind is kept for the
// next ones, because a system hands out pages one by one and zeroed.
void* take_memory(std::size_t nbytes);

// Gives back what take_memory(nbytes) has returned.
void give_memory(void* memory, std::size_t nbytes) noexcept;

}  // namespace hvd_compress
