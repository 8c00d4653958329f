#include <gtest/gtest.h>

#include <cstring>

#include "baton/base/clock.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/error.hpp"
#include "baton/base/fd.hpp"
#include "baton/base/ids.hpp"
#include "baton/base/log.hpp"

namespace baton {
namespace {

TEST(Digest, Sha256MatchesFips180Vectors) {
    EXPECT_EQ(to_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Digest, HmacMatchesRfc4231Case2) {
    const std::string data = "what do ya want for nothing?";
    EXPECT_EQ(to_hex(hmac_sha256("Jefe", std::as_bytes(std::span(data.data(), data.size())))),
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Digest, ConstantTimeCompareIsEquality) {
    EXPECT_TRUE(equal_constant_time("key", "key"));
    EXPECT_FALSE(equal_constant_time("key", "kez"));
    EXPECT_FALSE(equal_constant_time("key", "key2"));
}

TEST(Fd, MemfdIsSharedAndSealed) {
    auto fd = make_memfd("t", 4096);
    ASSERT_TRUE(fd);
    auto w = Mapping::map_fd(fd->get(), 4096, true);
    auto r = Mapping::map_fd(fd->get(), 4096, false);
    ASSERT_TRUE(w && r);
    std::memcpy(w->mutable_bytes().data(), "hello", 5);
    EXPECT_EQ(std::memcmp(r->bytes().data(), "hello", 5), 0);
    EXPECT_FALSE(Mapping::map_fd(fd->get(), 8192, false));  // larger than the object
}

TEST(Fd, MapFileSaysWhatIsWrong) {
    EXPECT_EQ(Mapping::map_file("/nonexistent/x").error().code, ErrorCode::kNotFound);
    EXPECT_EQ(Mapping::map_file("/tmp").error().code, ErrorCode::kInvalidArgument);
}

TEST(Error, TryAssignPassesErrorsOn) {
    const auto inner = [](bool ok) -> Expected<int> {
        if (!ok) return fail(ErrorCode::kNotFound, "no", "field");
        return 7;
    };
    const auto outer = [&](bool ok) -> Expected<int> {
        BATON_TRY_ASSIGN(const int v, inner(ok));
        return v + 1;
    };
    EXPECT_EQ(*outer(true), 8);
    EXPECT_EQ(outer(false).error().param, "field");
}

TEST(Ids, KindsCompareWithinThemselves) {
    EXPECT_LT(SequenceId{1}, SequenceId{2});
    EXPECT_FALSE(static_cast<bool>(ReplicaId{}));
}

}  // namespace
}  // namespace baton
