#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backend/buffer.hpp"
#include "backend/program.hpp"
#include "backend/thread_pool.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/error.hpp"

namespace baton::backend {

/// The packed weights of a model as one run of bytes, in a memory file that several replicas map or
/// in memory of one alone. Offsets follow from the plan: bytes 0 … 4095 hold the header, then come
/// the matrices in the order of the program, each at a multiple of 64, then zeros up to a whole
/// huge page. Raise the version whenever the bytes of a packed matrix or this order change.
inline constexpr uint32_t kImageVersion = 1;
inline constexpr size_t kImageHeaderBytes = 4096;

/// A digest of everything the bytes of the image depend on: the model, the kernels, the version,
/// and form and place of every matrix.
[[nodiscard]] Digest image_key(const Program& program, const Digest& model, const char* kernels);

/// Packs all matrices of `program` into `image`: program.image_bytes, zeroed.
[[nodiscard]] Expected<void> pack_weights(const Program& program, std::byte* image,
                                          ThreadPool& pool);

/// Packs into the memory file `fd` of program.image_bytes, writes the header when all is there, and
/// seals the file: nobody can write it or change its size any more. On errors it is left unsealed.
[[nodiscard]] Expected<void> fill_image(const Program& program, const Digest& key, int fd,
                                        ThreadPool& pool);

/// Maps an image that fill_image made, read-only. kCorrupt when size, seals or header are not those
/// of this program and key: nothing in the file is trusted before.
[[nodiscard]] Expected<Buffer> map_image(const Program& program, const Digest& key, int fd);

}  // namespace baton::backend
