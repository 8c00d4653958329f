#include "backend/weight_image.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "baton/base/fd.hpp"

namespace baton::backend {

namespace {

constexpr uint64_t kMagic = 0x315447574e4f5442;  // "BTONWGT1"
// Values of the kernel that this C library may not name yet.
constexpr int kMadvisePopulateRead = 22;
constexpr int kMadviseCollapse = 25;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

struct ImageHeader {
    uint64_t magic = kMagic;
    uint32_t version = kImageVersion;
    uint32_t matrices = 0;
    uint64_t bytes = 0;
    Digest key{};
};
static_assert(sizeof(ImageHeader) == 56 && sizeof(ImageHeader) <= kImageHeaderBytes);

/// Small pages cost a decode step a fifth of its speed. Most systems give a memory file no huge
/// pages of their own accord, but gather those that are there when asked to (Linux 6.1). A wish:
/// where it is not granted, everything works, slower.
void use_huge_pages(const Buffer& image) {
    if (image.bytes() >= Buffer::kHugePageBytes)
        madvise(image.data(), image.bytes(), kMadviseCollapse);
}

ImageHeader header_of(const Program& program, const Digest& key) {
    ImageHeader h;
    h.matrices = static_cast<uint32_t>(program.parts.size());
    h.bytes = program.image_bytes;
    h.key = key;
    return h;
}

tl::unexpected<Error> io_error(const char* what) {
    return fail(ErrorCode::kIo, std::string(what) + ": " + std::strerror(errno));
}

Expected<void> check_size(const Program& program, int fd) {
    struct stat st {};
    if (fstat(fd, &st) != 0) return io_error("cannot look at the weight image");
    if (st.st_size < 0 || static_cast<uint64_t>(st.st_size) != program.image_bytes)
        return fail(ErrorCode::kCorrupt, "the weight image has " + std::to_string(st.st_size) +
                                             " bytes, not " + std::to_string(program.image_bytes));
    return {};
}

}  // namespace

Digest image_key(const Program& program, const Digest& model, const char* kernels) {
    std::string text = "cpu-weights-" + std::to_string(kImageVersion) + "/" + kernels + "/" +
                       to_hex(model) + "/" + std::to_string(program.image_bytes);
    for (const WeightPart& p : program.parts)
        for (const size_t n : {static_cast<size_t>(p.to.kind), p.to.rows, p.to.cols, p.to.offset})
            text += "," + std::to_string(n);
    return sha256(text);
}

Expected<void> pack_weights(const Program& program, std::byte* image, ThreadPool& pool) {
    for (const WeightPart& p : program.parts)
        BATON_TRY(pack(*p.from, p.to, image + p.to.offset, pool));
    return {};
}

Expected<void> fill_image(const Program& program, const Digest& key, int fd, ThreadPool& pool) {
    BATON_TRY(check_size(program, fd));
    {
        BATON_TRY_ASSIGN(const Buffer image, Buffer::map(fd, program.image_bytes, true));
        BATON_TRY(pack_weights(program, image.data(), pool));
        const ImageHeader header = header_of(program, key);
        std::memcpy(image.data(), &header, sizeof(header));
        use_huge_pages(image);
    }  // a file that somebody has mapped writable cannot be sealed
    if (fcntl(fd, F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0)
        return io_error("cannot seal the weight image");
    return {};
}

Expected<Buffer> map_image(const Program& program, const Digest& key, int fd) {
    BATON_TRY(check_size(program, fd));
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & kSeals) != kSeals)
        return fail(ErrorCode::kCorrupt, "the weight image is not sealed");
    // A descriptor that cannot write may map a sealed file shared on every kernel.
    const UniqueFd read_only(
        open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC));
    BATON_TRY_ASSIGN(Buffer image,
                     Buffer::map(read_only ? read_only.get() : fd, program.image_bytes, false));
    const ImageHeader want = header_of(program, key);
    if (std::memcmp(image.data(), &want, sizeof(want)) != 0)
        return fail(ErrorCode::kCorrupt, "the weight image is of another model or format");
    use_huge_pages(image);
    // The pages are there: mapping them now spares the first steps the faults.
    madvise(image.data(), image.bytes(), kMadvisePopulateRead);
    return image;
}

}  // namespace baton::backend
