#include "backend/weight_image.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu_backend.hpp"
#include "baton/base/fd.hpp"
#include "harness.hpp"

namespace baton::backend::test {
namespace {

using tensor::DType;

UniqueFd memory_file(uint64_t bytes) {
    UniqueFd fd(::memfd_create("weight-image-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    return fd;
}

CpuOptions options_for(const char* model, const std::string& isa = {}) {
    CpuOptions o;
    o.isa = isa;
    o.threads = 2;
    o.blocks = 8;
    o.max_batch_tokens = 64;
    o.max_batch_slices = 4;
    o.model = sha256(model);
    return o;
}

uint64_t image_bytes(const Plan& plan, const CpuOptions& o) {
    return cpu_weight_image(plan, o).value().bytes;
}

UniqueFd filled(const Plan& plan, const CpuOptions& o) {
    UniqueFd fd = memory_file(image_bytes(plan, o));
    const auto done = fill_cpu_weights(plan, o, fd.get());
    EXPECT_TRUE(done) << done.error().message;
    return fd;
}

std::vector<std::byte> content(int fd) {
    const auto bytes = static_cast<size_t>(::lseek(fd, 0, SEEK_END));
    std::vector<std::byte> out(bytes);
    EXPECT_EQ(::pread(fd, out.data(), bytes, 0), static_cast<ssize_t>(bytes));
    return out;
}

/// What a backend says that is to read its weights from `fd`.
ErrorCode result_of(const Plan& plan, CpuOptions o, int fd) {
    o.weights_fd = fd;
    std::vector<std::byte> memory(cpu_kv_layout(plan.shape, o).value().pool_bytes() + 64);
    const auto at = reinterpret_cast<uintptr_t>(memory.data());
    const auto made = make_cpu_backend(
        plan, o, std::span(memory).subspan((64 - at % 64) % 64, memory.size() - 64));
    return made ? ErrorCode::kOk : made.error().code;
}

/// An unsealed copy of a filled image, for tests that spoil it.
UniqueFd copy_of(int fd, size_t bytes) {
    const std::vector<std::byte> all = content(fd);
    UniqueFd out = memory_file(bytes);
    const size_t n = std::min(bytes, all.size());
    EXPECT_EQ(::pwrite(out.get(), all.data(), n, 0), static_cast<ssize_t>(n));
    return out;
}

void seal(int fd) {
    ASSERT_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
}

TEST(WeightImage, GivesTheLogitsAndPagesOfPrivateWeightsBitForBit) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_1, DType::kQ6_K}) {
        const Plan plan = make_plan({type, wide_shape(), true, true, 3});
        for (const auto& isa : available_isas()) {
            const CpuOptions own = options_for("m", isa);
            const UniqueFd fd = filled(plan, own);
            CpuOptions shared = own;
            shared.weights_fd = fd.get();
            Harness a(plan, own), b(plan, shared), c(plan, shared);
            Rng rng(5);
            const auto tokens = random_tokens(rng, 33, plan.shape.vocab);
            const auto want = a.run({{tokens, 0, {1, 2, 3}}});
            ASSERT_EQ(want.size(), 1u);
            for (Harness* h : {&b, &c}) {
                const auto got = h->run({{tokens, 0, {1, 2, 3}}});
                ASSERT_EQ(got.size(), 1u);
                EXPECT_TRUE(same_bits(got[0], want[0])) << to_string(type) << " " << isa;
                for (uint32_t layer = 0; layer < plan.shape.layers; ++layer)
                    EXPECT_EQ(h->page(layer, true, 2), a.page(layer, true, 2));
            }
        }
    }
}

TEST(WeightImage, OutlivesTheDescriptorItWasMappedFrom) {
    const Plan plan = make_plan({DType::kQ4_0, wide_shape(), false, false, 3});
    CpuOptions shared = options_for("m");
    UniqueFd fd = filled(plan, shared);
    shared.weights_fd = fd.get();
    Harness h(plan, shared);
    fd.reset();
    EXPECT_EQ(h.run({{{1, 2, 3}, 0, {1}}}).size(), 1u);
}

TEST(WeightImage, HasTheSameBytesHoweverManyThreadsPackIt) {
    const Plan plan = make_plan({DType::kQ5_K, wide_shape(), false, false, 3});
    CpuOptions one = options_for("m"), three = one;
    one.threads = 1;
    three.threads = 3;
    EXPECT_EQ(content(filled(plan, one).get()), content(filled(plan, three).get()));
}

TEST(WeightImage, KeyNamesModelInstructionSetAndShape) {
    const Plan plan = make_plan({DType::kQ4_0, wide_shape(), false, false, 3});
    const auto key = [&](const Plan& p, const CpuOptions& o) {
        return cpu_weight_image(p, o).value().key;
    };
    const CpuOptions o = options_for("m", "portable");
    EXPECT_EQ(key(plan, o), key(plan, o));
    CpuOptions other = o;
    other.threads = 7;  // no matter to the bytes
    other.blocks = 90;
    EXPECT_EQ(key(plan, o), key(plan, other));
    EXPECT_NE(key(plan, o), key(plan, options_for("n", "portable")));
    for (const auto& isa : available_isas())
        EXPECT_EQ(key(plan, o) == key(plan, options_for("m", isa)), isa == "portable") << isa;
    EXPECT_NE(key(plan, o), key(make_plan({DType::kQ4_1, wide_shape(), false, false, 3}), o));
    ModelShape deeper = wide_shape();
    ++deeper.layers;
    EXPECT_NE(key(plan, o), key(make_plan({DType::kQ4_0, deeper, false, false, 3}), o));
}

TEST(WeightImage, FilledFileCanNeitherBeWrittenNorResized) {
    const Plan plan = make_plan({DType::kQ4_0, wide_shape(), false, false, 3});
    const UniqueFd fd = filled(plan, options_for("m"));
    const std::byte b{1};
    EXPECT_EQ(::pwrite(fd.get(), &b, 1, 5000), -1);
    EXPECT_EQ(::ftruncate(fd.get(), 4096), -1);
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
    EXPECT_EQ(result_of(plan, options_for("m"), fd.get()), ErrorCode::kOk);
}

TEST(WeightImage, RefusesWhatIsNotTheImageOfThisPlan) {
    const Plan plan = make_plan({DType::kQ4_0, wide_shape(), false, false, 3});
    const CpuOptions o = options_for("m");
    const UniqueFd good = filled(plan, o);
    const uint64_t bytes = image_bytes(plan, o);
    EXPECT_EQ(result_of(plan, options_for("n"), good.get()), ErrorCode::kCorrupt) << "other model";
    for (const uint64_t wrong : {uint64_t{0}, uint64_t{100}, bytes - 4096, bytes + 4096}) {
        const UniqueFd fd = copy_of(good.get(), wrong);
        seal(fd.get());
        EXPECT_EQ(result_of(plan, o, fd.get()), ErrorCode::kCorrupt) << wrong << " bytes";
    }
    const UniqueFd unsealed = copy_of(good.get(), bytes);
    EXPECT_EQ(result_of(plan, o, unsealed.get()), ErrorCode::kCorrupt) << "not sealed";
    seal(unsealed.get());
    EXPECT_EQ(result_of(plan, o, unsealed.get()), ErrorCode::kOk) << "the copy is whole";
    for (const off_t at : {0, 8, 12, 16, 24, 55}) {  // each field of the header
        const UniqueFd fd = copy_of(good.get(), bytes);
        std::byte b{};
        ASSERT_EQ(::pread(fd.get(), &b, 1, at), 1);
        b ^= std::byte{0x40};
        ASSERT_EQ(::pwrite(fd.get(), &b, 1, at), 1);
        seal(fd.get());
        EXPECT_EQ(result_of(plan, o, fd.get()), ErrorCode::kCorrupt) << "header byte " << at;
    }
    const UniqueFd half = memory_file(bytes);  // a filler that died: the header comes last
    seal(half.get());
    EXPECT_EQ(result_of(plan, o, half.get()), ErrorCode::kCorrupt);
    EXPECT_NE(result_of(plan, o, 1 << 20), ErrorCode::kOk) << "no descriptor at all";
}

TEST(WeightImage, FillRefusesAFileItCannotUse) {
    const Plan plan = make_plan({DType::kQ4_0, wide_shape(), false, false, 3});
    const CpuOptions o = options_for("m");
    const UniqueFd small = memory_file(8192);
    EXPECT_EQ(fill_cpu_weights(plan, o, small.get()).error().code, ErrorCode::kCorrupt);
    const UniqueFd sealed = memory_file(image_bytes(plan, o));
    seal(sealed.get());
    EXPECT_EQ(fill_cpu_weights(plan, o, sealed.get()).error().code, ErrorCode::kIo);
    EXPECT_FALSE(fill_cpu_weights(plan, o, -1));
}

TEST(WeightImage, RandomContentBehindAGoodHeaderGivesNumbersNotCrashes) {
    for (const DType type : kAllTypes) {
        const Plan plan = make_plan({type, wide_shape(), false, false, 3});
        CpuOptions o = options_for("m");
        const UniqueFd good = filled(plan, o);
        const UniqueFd fd = copy_of(good.get(), image_bytes(plan, o));
        Rng rng(9);
        std::vector<uint64_t> noise((image_bytes(plan, o) - kImageHeaderBytes) / 8);
        for (auto& n : noise) n = rng.next();
        ASSERT_EQ(::pwrite(fd.get(), noise.data(), noise.size() * 8, kImageHeaderBytes),
                  static_cast<ssize_t>(noise.size() * 8));
        seal(fd.get());
        o.weights_fd = fd.get();
        Harness h(plan, o);
        EXPECT_EQ(h.run({{{1, 2, 3}, 0, {1}}}).size(), 1u);
    }
}

}  // namespace
}  // namespace baton::backend::test
