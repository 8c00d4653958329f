#include "hub/listing.hpp"

#include <gtest/gtest.h>

namespace baton::hub {
namespace {

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";
const std::string kSha256(64, 'a');

std::string list(const std::string& siblings) { return R"({"sha":")" + kCommit + R"(","siblings":[)" + siblings + "]}"; }

TEST(Listing, HuggingFaceFilesHaveSizesAndDigests) {
    const auto l = parse_huggingface_listing(list(R"({"rfilename":"config.json","size":12,"blobId":")" + std::string(40, 'b') +
                                                  R"("},{"rfilename":"a/m.safetensors","size":5,"blobId":"x","lfs":{"sha256":")" + kSha256 +
                                                  R"(","size":500,"pointerSize":130}},{"rfilename":"unknown.txt"})"));
    ASSERT_TRUE(l) << l.error().message;
    EXPECT_EQ(l->commit, kCommit);
    EXPECT_EQ(l->find("config.json")->git_sha1, std::string(40, 'b'));
    EXPECT_EQ(l->find("config.json")->size, 12u);
    EXPECT_EQ(l->find("a/m.safetensors")->blob, kSha256);
    EXPECT_EQ(l->find("a/m.safetensors")->size, 500u);
    EXPECT_EQ(l->find("unknown.txt")->blob, "");  // HEAD tells
    EXPECT_EQ(l->find("none"), nullptr);
}

TEST(Listing, HostileListsAreRefused) {
    for (const std::string& bad : {
             std::string("[]"), std::string("{}"), std::string("null"), std::string("not json"), list("3"),
             R"({"sha":"../../x","siblings":[]})" + std::string(), R"({"sha":")" + kCommit + R"(","siblings":{}})",
             list(R"({"rfilename":"../../.bashrc"})"), list(R"({"rfilename":"/etc/passwd"})"), list(R"({"rfilename":""})"), list(R"({"rfilename":7})"),
             list(R"({"rfilename":"a"},{"rfilename":"a"})"), list(R"({"rfilename":"a\u0000b"})"),
         })
        EXPECT_FALSE(parse_huggingface_listing(bad)) << bad;
    // Sizes and digests that cannot be are left to HEAD, never believed.
    const auto odd = parse_huggingface_listing(list(R"({"rfilename":"a","size":-1,"blobId":")" + std::string(40, 'b') + R"("},{"rfilename":"b","lfs":{"sha256":"../x","size":1}},)" +
                                                    R"({"rfilename":"c","size":1e30,"blobId":")" + std::string(40, 'b') + R"("})"));
    ASSERT_TRUE(odd);
    for (const RemoteFile& f : odd->files) EXPECT_EQ(f.blob, "") << f.path;
    std::string many;
    for (size_t i = 0; i <= kFilesMax; ++i) many += (i ? "," : "") + (R"({"rfilename":"f)" + std::to_string(i) + "\"}");
    EXPECT_FALSE(parse_huggingface_listing(list(many)));
}

TEST(Listing, ModelScopeFilesMakeACommit) {
    const auto text = [](const std::string& sha) {
        return R"({"Code":200,"Data":{"Files":[{"Path":"sub","Type":"tree","Size":0},{"Path":"config.json","Type":"blob","Size":3,"Sha256":")" + sha + R"("}]}})";
    };
    const auto a = parse_modelscope_listing(text(kSha256));
    ASSERT_TRUE(a) << a.error().message;
    ASSERT_EQ(a->files.size(), 1u);
    EXPECT_EQ(a->files[0].sha256, kSha256);
    EXPECT_EQ(a->commit.size(), 40u);
    EXPECT_EQ(parse_modelscope_listing(text(kSha256))->commit, a->commit);
    EXPECT_NE(parse_modelscope_listing(text(std::string(64, 'c')))->commit, a->commit);
    EXPECT_FALSE(parse_modelscope_listing(text("short")));
    EXPECT_FALSE(parse_modelscope_listing("{}"));
}

TEST(Listing, HeadDescribesAFile) {
    ResponseHead head{302, {{"x-linked-etag", "\"" + kSha256 + "\""}, {"x-linked-size", "77"}, {"etag", "\"other\""}, {"x-repo-commit", kCommit}}, 5};
    RemoteFile file;
    file.path = "m";
    ASSERT_TRUE(describe_from_head(head, kCommit, file));
    EXPECT_EQ(file.sha256, kSha256);
    EXPECT_EQ(file.size, 77u);
    EXPECT_FALSE(describe_from_head(head, std::string(40, 'f'), file));
    head = {200, {{"etag", "W/\"abc\""}}, 9};
    RemoteFile plain;
    ASSERT_TRUE(describe_from_head(head, kCommit, plain));
    EXPECT_EQ(plain.blob, "abc");
    EXPECT_EQ(plain.size, 9u);
    EXPECT_EQ(plain.sha256 + plain.git_sha1, "");
    for (const ResponseHead& bad : {ResponseHead{200, {}, 9}, ResponseHead{200, {{"etag", "\"../x\""}}, 9}, ResponseHead{302, {{"etag", "\"a\""}}, 9},
                                    ResponseHead{302, {{"x-linked-etag", "\"a\""}, {"x-linked-size", "9z"}}, 9}, ResponseHead{200, {{"etag", "a"}}, std::nullopt}})
        EXPECT_FALSE(describe_from_head(bad, kCommit, plain));
}

TEST(Listing, StatusesHaveReasons) {
    PullRequest request;
    request.repo = "org/name";
    const Url url = *parse_url("https://hub.example/x");
    const auto error = [&](int status, const char* code, const char* file, bool token) {
        return status_error({status, {{"x-error-code", code}}, {}}, request, file, url, token);
    };
    EXPECT_EQ(error(401, "", "", false).code, ErrorCode::kUnauthorized);
    EXPECT_NE(error(401, "", "", false).message.find("HF_TOKEN"), std::string::npos);
    EXPECT_NE(error(403, "GatedRepo", "", true).message.find("gated"), std::string::npos);
    EXPECT_EQ(error(404, "RepoNotFound", "", false).code, ErrorCode::kNotFound);
    EXPECT_EQ(error(404, "EntryNotFound", "config.json", false).message, "config.json of org/name does not exist on hub.example");
    EXPECT_EQ(error(429, "", "", false).code, ErrorCode::kUnavailable);
    EXPECT_EQ(error(503, "", "", false).code, ErrorCode::kUnavailable);
    EXPECT_EQ(error(418, "", "", false).code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace baton::hub
