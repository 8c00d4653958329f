#include "hub/names.hpp"

#include <gtest/gtest.h>

#include "hub/url.hpp"

namespace baton::hub {
namespace {

TEST(Names, RepositoriesAreOrgAndName) {
    for (const char* good : {"Qwen/Qwen2.5-0.5B-Instruct", "gpt2", "a/b_c.d", "meta-llama/Llama-3.2-1B"}) EXPECT_TRUE(check_repo(good)) << good;
    for (const char* bad : {"", "/", "a/", "/b", "a/b/c", "..", "a/..", "../b", "a--b/c", "a/b--c", ".a/b", "a/b.", "a b/c", "a/b\n", "a/b?x", "-a/b"})
        EXPECT_FALSE(check_repo(bad)) << bad;
    EXPECT_FALSE(check_repo("a/" + std::string(200, 'x')));
}

TEST(Names, RevisionsMakePathsBelowRefs) {
    for (const char* good : {"main", "v1.0", "refs/pr/12", "0123456789abcdef0123456789abcdef01234567", "feature/x"}) EXPECT_TRUE(check_revision(good)) << good;
    for (const char* bad : {"", "/x", "x/", "../x", "a/../b", "a//b", ".", "a b", "a?b", "a%2fb", "x\\y"}) EXPECT_FALSE(check_revision(bad)) << bad;
}

TEST(Names, PathsThatLeaveTheirFolderAreRefused) {
    for (const char* good : {"config.json", "sub/folder/model.safetensors", "..a", "a..", ".gitattributes", "naïve.txt"}) EXPECT_TRUE(check_file_path(good)) << good;
    for (const char* bad : {"", "/etc/passwd", "../x", "a/../../x", "a/..", "./x", "a//b", "a/", "a\\..\\b", "..", "a/./b"}) EXPECT_FALSE(check_file_path(bad)) << bad;
    EXPECT_FALSE(check_file_path(std::string("a\0b", 3)));
    EXPECT_FALSE(check_file_path(std::string(256, 'x')));
    EXPECT_TRUE(check_file_path(std::string(255, 'x')));
    std::string deep = "x";
    for (int i = 0; i < 20; ++i) deep += "/x";
    EXPECT_FALSE(check_file_path(deep));
}

TEST(Names, ETagsBecomeBlobNames) {
    EXPECT_EQ(blob_name("\"abc123\""), "abc123");
    EXPECT_EQ(blob_name("W/\"abc\""), "abc");
    EXPECT_EQ(blob_name("abc"), "abc");
    for (const char* bad : {"", "\"\"", "W/\"\"", "\"../x\"", "\"a/b\"", "\".hidden\"", "\"a b\"", "\"x.incomplete\"", "\"a", "\"a\\b\""})
        EXPECT_EQ(blob_name(bad), "") << bad;
    EXPECT_EQ(blob_name(std::string(200, 'a')), "");
}

TEST(Names, JsonIsBounded) {
    EXPECT_TRUE(parse_json(R"({"a":[1,"]]]]"]})", "x"));
    EXPECT_FALSE(parse_json("{", "x"));
    EXPECT_FALSE(parse_json("", "x"));
    EXPECT_FALSE(parse_json(std::string(100'000, '['), "x"));
    EXPECT_FALSE(parse_json(std::string(40, '[') + std::string(40, ']'), "x"));
    EXPECT_EQ(parse_json("nope", "the list").error().message, "the list is not valid JSON");
}

TEST(Url, IsSplitAndPutTogether) {
    const auto url = parse_url("HTTPS://user:p%40ss@Hub.example:8443/a/b?c=d#e");
    ASSERT_TRUE(url);
    EXPECT_TRUE(url->tls);
    EXPECT_EQ(url->host, "hub.example");
    EXPECT_EQ(url->port, 8443);
    EXPECT_EQ(url->target, "/a/b?c=d");
    EXPECT_EQ(url->user_info, "user:p@ss");
    EXPECT_EQ(url->text(), "https://hub.example:8443/a/b?c=d");
    EXPECT_EQ(parse_url("http://[::1]:80")->authority(), "[::1]");
    EXPECT_EQ(parse_url("https://h?x=1")->target, "/?x=1");
    for (const char* bad : {"", "ftp://x", "https://", "https://a:0", "https://a:x", "https://a:70000", "https://a b", "https://a/\n", "file:///etc", "https://[::1", "https://a_b/\x7f"})
        EXPECT_FALSE(parse_url(bad)) << bad;
}

TEST(Url, LocationsAreResolved) {
    const Url base = *parse_url("https://h:1/a/b/c?q");
    EXPECT_EQ(resolve_location(base, "/x")->text(), "https://h:1/x");
    EXPECT_EQ(resolve_location(base, "x?y=http://z")->text(), "https://h:1/a/b/x?y=http://z");
    EXPECT_EQ(resolve_location(base, "//o/x")->text(), "https://o/x");
    EXPECT_EQ(resolve_location(base, "http://o:2/x")->text(), "http://o:2/x");
    EXPECT_FALSE(resolve_location(base, "javascript://x y"));
}

TEST(Url, CredentialsBelongToOneOrigin) {
    const Url a = *parse_url("https://h/x");
    EXPECT_TRUE(a.same_origin(*parse_url("https://H:443/y")));
    EXPECT_FALSE(a.same_origin(*parse_url("http://h/x")));
    EXPECT_FALSE(a.same_origin(*parse_url("https://h:444/x")));
    EXPECT_FALSE(a.same_origin(*parse_url("https://h.evil/x")));
}

TEST(Url, Encodings) {
    EXPECT_EQ(percent_encode("a b/ü?"), "a%20b/%C3%BC%3F");
    EXPECT_EQ(percent_encode("refs/pr/1", true), "refs%2Fpr%2F1");
    EXPECT_EQ(percent_decode("%41%2"), "A%2");
}

TEST(Url, NoProxyNamesHosts) {
    const Url url = *parse_url("https://cdn.hub.example/x");
    for (const char* yes : {"*", "cdn.hub.example", "a,hub.example", ".hub.example", " EXAMPLE ", "cdn.hub.example:443"}) EXPECT_TRUE(bypasses_proxy(yes, url)) << yes;
    for (const char* no : {"", "hub", "b.example", "cdn.hub.example:80", "xcdn.hub.example", ","}) EXPECT_FALSE(bypasses_proxy(no, url)) << no;
}

}  // namespace
}  // namespace baton::hub
