#include "baton/base/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace baton::log {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

/// What a process with this log writes. What is set up holds for the whole process, hence one of its own.
std::string written(Format format, const std::function<void()>& say) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(ends[1], STDERR_FILENO);
        ::close(ends[0]);
        init(Level::kInfo, format, {{"role", "prefill"}, {"replica", 3}});
        say();
        ::_exit(0);
    }
    ::close(ends[1]);
    std::string out;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) out.append(buffer, static_cast<size_t>(n));
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    return out;
}

TEST(Log, JsonLinesHaveTheirTypes) {
    const std::string line = written(Format::kJson, [] {
        info("kv.loaded", {{"req", "a\"b\\c\nd\x7f"}, {"bytes", uint64_t{1} << 40}, {"left", -3}, {"ok", true}, {"share", 0.25}, {"none", std::numeric_limits<double>::quiet_NaN()}, {"", "left out"}});
    });
    const Json json = Json::parse(line);
    EXPECT_EQ(json["event"], "kv.loaded");
    EXPECT_EQ(json["level"], "info");
    EXPECT_EQ(json["req"], "a\"b\\c\nd\x7f");
    EXPECT_EQ(json["bytes"], uint64_t{1} << 40);
    EXPECT_EQ(json["left"], -3);
    EXPECT_EQ(json["ok"], true);
    EXPECT_EQ(json["share"], 0.25);
    EXPECT_TRUE(json["none"].is_string());
    EXPECT_EQ(json["role"], "prefill");
    EXPECT_EQ(json["replica"], 3);
    EXPECT_TRUE(json.contains("time"));
    EXPECT_FALSE(json.contains(""));
}

TEST(Log, WhatIsNoUtf8IsReplacedInJson) {
    const std::string line = written(Format::kJson, [] { info("e", {{"a", "ok ä\xff\xc3(\xed\xa0\x80"}}); });
    EXPECT_EQ(Json::parse(line)["a"], "ok ä\ufffd\ufffd(\ufffd\ufffd\ufffd");
}

TEST(Log, OneLineAnEventWhateverItsFieldsHold) {
    for (const Format format : {Format::kText, Format::kJson}) {
        const std::string text = written(format, [] {
            warn("a.b", {{"v", "x\ny=\"1\"\r2026 info forged"}});
            debug("hidden");
            error("c.d");
        });
        EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
        EXPECT_EQ(text.find('\r'), std::string::npos);
        EXPECT_EQ(text.find("hidden"), std::string::npos);
    }
    EXPECT_THAT(written(Format::kText, [] { info("a.b", {{"n", 5}, {"word", "x"}, {"two", "x y"}}); }), HasSubstr(" a.b n=5 word=x two=\"x y\" role=prefill replica=3\n"));
}

}  // namespace
}  // namespace baton::log
