#include "hub/cache.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "baton/base/digest.hpp"
#include "hub/blob_writer.hpp"

namespace baton::hub {
namespace {

namespace fs = std::filesystem;
const std::string kCommit(40, 'c');

class CacheTest : public testing::Test {
  protected:
    CacheTest() {
        std::string pattern = fs::temp_directory_path() / "baton-hub-XXXXXX";
        dir_ = ::mkdtemp(pattern.data());
    }
    ~CacheTest() override { fs::remove_all(dir_); }
    static void write(const std::string& path, std::string_view text) {
        fs::create_directories(fs::path(path).parent_path());
        std::ofstream(path, std::ios::binary) << text;
    }
    static std::string read(const std::string& path) {
        std::ifstream in(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    /// A blob as the hub would describe it.
    static RemoteFile remote(const std::string& path, const std::string& content, bool git = false) {
        RemoteFile f;
        f.path = path;
        f.size = content.size();
        (git ? f.git_sha1 : f.sha256) = git ? std::string("95d09f2b10159347eece71399a7e2e907ea3df4f") : to_hex(sha256(content));
        f.blob = git ? f.git_sha1 : f.sha256;
        return f;
    }
    std::string dir_;
    std::stop_source stop_;
};

TEST_F(CacheTest, LinksAreRelativeAndFollowTheStandardLayout) {
    const RepoCache cache(dir_, "org/name");
    ASSERT_TRUE(cache.prepare());
    write(cache.blob_path("b1"), "hello");
    ASSERT_TRUE(cache.link(kCommit, "config.json", "b1"));
    ASSERT_TRUE(cache.link(kCommit, "sub/deep/x.bin", "b1"));
    ASSERT_TRUE(cache.link(kCommit, "config.json", "b1"));
    EXPECT_EQ(fs::read_symlink(dir_ + "/models--org--name/snapshots/" + kCommit + "/config.json"), "../../blobs/b1");
    EXPECT_EQ(fs::read_symlink(dir_ + "/models--org--name/snapshots/" + kCommit + "/sub/deep/x.bin"), "../../../../blobs/b1");
    EXPECT_EQ(read(cache.snapshot_dir(kCommit) + "/sub/deep/x.bin"), "hello");
    EXPECT_EQ(cache.files_of(kCommit), (std::vector<std::string>{"config.json", "sub/deep/x.bin"}));
    // A link whose blob is gone is no file.
    fs::remove(cache.blob_path("b1"));
    EXPECT_TRUE(cache.files_of(kCommit).empty());
}

TEST_F(CacheTest, RefsNameCommits) {
    const RepoCache cache(dir_, "org/name");
    ASSERT_TRUE(cache.prepare());
    EXPECT_FALSE(cache.commit_of("main"));
    ASSERT_TRUE(cache.set_ref("main", kCommit));
    ASSERT_TRUE(cache.set_ref("refs/pr/1", kCommit));
    ASSERT_TRUE(cache.set_ref(kCommit, kCommit));
    EXPECT_EQ(read(dir_ + "/models--org--name/refs/main"), kCommit);
    EXPECT_EQ(*cache.commit_of("refs/pr/1"), kCommit);
    EXPECT_EQ(*cache.commit_of(kCommit), kCommit);
    EXPECT_FALSE(fs::exists(dir_ + "/models--org--name/refs/" + kCommit));
    write(dir_ + "/models--org--name/refs/evil", "../../../etc");
    EXPECT_FALSE(cache.commit_of("evil"));
}

TEST_F(CacheTest, ABlobIsLockedOnce) {
    const RepoCache cache(dir_, "org/name");
    ASSERT_TRUE(cache.prepare());
    auto first = cache.try_lock("b");
    ASSERT_TRUE(first && *first);
    auto second = cache.try_lock("b");
    ASSERT_TRUE(second);
    EXPECT_FALSE(*second);
    EXPECT_TRUE(fs::exists(dir_ + "/.locks/models--org--name/b.lock"));
    first->reset();
    EXPECT_TRUE(*cache.try_lock("b"));
}

TEST_F(CacheTest, RangesInAnyOrderAreAlwaysABeginningOfTheFile) {
    const RepoCache cache(dir_, "org/name");
    ASSERT_TRUE(cache.prepare());
    const RemoteFile file = remote("x", "abcdefghij");
    const CancelSignal never(stop_.get_token());
    BlobWriter writer(cache, file);
    ASSERT_TRUE(writer.open(false, never));
    ASSERT_TRUE(writer.put(6, "ghij"));
    EXPECT_EQ(read(cache.incomplete_path(file.blob)), "");
    ASSERT_TRUE(writer.put(0, "abc"));
    EXPECT_EQ(read(cache.incomplete_path(file.blob)), "abc");
    writer.salvage(4, "e");  // not what comes next
    writer.salvage(3, "d");
    EXPECT_EQ(read(cache.incomplete_path(file.blob)), "abcd");
    ASSERT_TRUE(writer.put(4, "ef"));
    EXPECT_EQ(writer.written(), 10u);
    ASSERT_TRUE(writer.finish());
    EXPECT_TRUE(cache.has_blob(file.blob, 10));
    EXPECT_FALSE(fs::exists(cache.incomplete_path(file.blob)));
}

TEST_F(CacheTest, WhatAnEarlierDownloadLeftIsResumed) {
    const RepoCache cache(dir_, "org/name");
    ASSERT_TRUE(cache.prepare());
    const RemoteFile file = remote("x", "abcdefghij");
    const CancelSignal never(stop_.get_token());
    write(cache.incomplete_path(file.blob), "abcd");
    BlobWriter writer(cache, file);
    ASSERT_TRUE(writer.open(false, never));
    EXPECT_EQ(writer.written(), 4u);
    EXPECT_TRUE(writer.resumed());
    ASSERT_TRUE(writer.put(4, "efghij"));
    EXPECT_TRUE(writer.finish());
    // Longer than the file: not its beginning.
    const RemoteFile other = remote("y", "abc");
    write(cache.incomplete_path(other.blob), "abcdef");
    BlobWriter again(cache, other);
    ASSERT_TRUE(again.open(false, never));
    EXPECT_EQ(again.written(), 0u);
}

TEST_F(CacheTest, AWrongDigestLeavesNothing) {
    const RepoCache cache(dir_, "org/name");
    ASSERT_TRUE(cache.prepare());
    RemoteFile file = remote("x", "abc");
    const CancelSignal never(stop_.get_token());
    BlobWriter writer(cache, file);
    ASSERT_TRUE(writer.open(false, never));
    ASSERT_TRUE(writer.put(0, "abd"));
    const auto finished = writer.finish();
    ASSERT_FALSE(finished);
    EXPECT_EQ(finished.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(finished.error().message.find("x has the SHA-256 "), std::string::npos);
    EXPECT_FALSE(cache.has_blob(file.blob, 3));
    EXPECT_FALSE(fs::exists(cache.incomplete_path(file.blob)));
    BlobWriter longer(cache, file);
    ASSERT_TRUE(longer.open(false, never));
    EXPECT_FALSE(longer.put(0, "abcd"));
}

TEST_F(CacheTest, GitDigestsAreThoseOfBlobs) {
    const RepoCache cache(dir_, "org/name");
    ASSERT_TRUE(cache.prepare());
    const RemoteFile file = remote("x", "hello world", true);  // git hash-object of "hello world" + no newline
    const CancelSignal never(stop_.get_token());
    BlobWriter writer(cache, file);
    ASSERT_TRUE(writer.open(false, never));
    ASSERT_TRUE(writer.put(0, "hello world"));
    const auto finished = writer.finish();
    if (!finished) ADD_FAILURE() << finished.error().message;
}

TEST_F(CacheTest, CachedModelsAreFoundByThePlan) {
    Settings settings;
    settings.cache_dir = dir_ + "/hub";
    settings.modelscope_cache_dir = dir_ + "/ms";
    const RepoCache cache(settings.cache_dir, "org/name");
    ASSERT_TRUE(cache.prepare());
    ASSERT_TRUE(cache.set_ref("main", kCommit));
    PullRequest request;
    request.repo = "org/name";
    EXPECT_EQ(find_cached(settings, request).error().message, "org/name (revision main) is not in the cache " + settings.cache_dir);
    for (const char* name : {"config.json", "tokenizer.json"}) {
        write(cache.blob_path(name), "{}");
        ASSERT_TRUE(cache.link(kCommit, name, name));
    }
    write(cache.blob_path("index"), R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
    write(cache.blob_path("m1"), "1");
    ASSERT_TRUE(cache.link(kCommit, "model.safetensors.index.json", "index"));
    ASSERT_TRUE(cache.link(kCommit, "m-1.safetensors", "m1"));
    EXPECT_EQ(find_cached(settings, request).error().message, "org/name has no m-2.safetensors in the cache");
    settings.offline = true;
    EXPECT_EQ(pull(settings, request).error().message, "org/name has no m-2.safetensors in the cache; nothing is downloaded in offline mode (HF_HUB_OFFLINE)");
    ASSERT_TRUE(cache.link(kCommit, "m-2.safetensors", "m1"));
    const auto found = pull(settings, request);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->path, cache.snapshot_dir(kCommit));
    EXPECT_EQ(found->format, "pytorch");
    const auto all = list_cached(settings);
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].repo, "org/name");
    EXPECT_EQ(all[0].revisions, std::vector<std::string>{"main"});
    EXPECT_EQ(all[0].files.size(), 5u);
    request.hub = Hub::kModelScope;
    EXPECT_FALSE(find_cached(settings, request));
}

TEST(HubSettings, FollowTheUsualVariables) {
    std::map<std::string, std::string> env{{"HOME", "/home/u"}, {"BATON_CACHE_DIR", "/var/b"}};
    const auto get = [&](const char* name) -> const char* {
        const auto it = env.find(name);
        return it == env.end() ? nullptr : it->second.c_str();
    };
    EXPECT_EQ(settings_from(get)->cache_dir, "/home/u/.cache/huggingface/hub");
    EXPECT_EQ(settings_from(get)->modelscope_cache_dir, "/var/b/modelscope");
    EXPECT_EQ(settings_from(get)->endpoint, kDefaultEndpoint);
    env["XDG_CACHE_HOME"] = "/x";
    EXPECT_EQ(settings_from(get)->cache_dir, "/x/huggingface/hub");
    env["HF_HOME"] = "~/hf";
    EXPECT_EQ(settings_from(get)->cache_dir, "/home/u/hf/hub");
    env["HUGGINGFACE_HUB_CACHE"] = "/old";
    env["HF_HUB_CACHE"] = "/new";
    EXPECT_EQ(settings_from(get)->cache_dir, "/new");
    env["HF_ENDPOINT"] = "https://mirror.example:8443/hf/";
    env["HF_TOKEN"] = " hf_x\n";
    env["HF_HUB_OFFLINE"] = "ON";
    env["https_proxy"] = "http://p:1";
    env["BATON_DOWNLOAD_HUB"] = "ModelScope";
    const auto s = settings_from(get);
    ASSERT_TRUE(s) << s.error().message;
    EXPECT_EQ(s->endpoint, "https://mirror.example:8443/hf");
    EXPECT_EQ(s->token, "hf_x");
    EXPECT_TRUE(s->offline);
    EXPECT_EQ(s->https_proxy, "http://p:1");
    EXPECT_EQ(s->http_proxy, "");
    EXPECT_EQ(s->default_hub, "modelscope");
    env["HF_TOKEN"] = "a\r\nEvil: x";
    EXPECT_EQ(settings_from(get).error().param, "HF_TOKEN");
    env["HF_TOKEN"] = "";
    env["HF_ENDPOINT"] = "ftp://x";
    EXPECT_EQ(settings_from(get).error().param, "HF_ENDPOINT");
}

}  // namespace
}  // namespace baton::hub
