#include <gtest/gtest.h>

#include "baton/http/message.hpp"

namespace baton::http {
namespace {

constexpr const char* kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";

std::string read(const std::string& value) {
    Request request;
    request.headers = {{"host", "a"}, {"traceparent", value}};
    return std::string(trace_id(request));
}

TEST(TraceId, IsReadFromEveryVersion) {
    const std::string good = std::string("00-") + kTrace + "-00f067aa0ba902b7-01";
    EXPECT_EQ(read(good), kTrace);
    EXPECT_EQ(read(std::string("00-") + kTrace + "-00f067aa0ba902b7-ff"), kTrace);
    EXPECT_EQ(read(std::string("cc-") + kTrace + "-00f067aa0ba902b7-01"), kTrace);
    EXPECT_EQ(read(std::string("cc-") + kTrace + "-00f067aa0ba902b7-01-what the future brings"), kTrace);
    EXPECT_EQ(read(std::string("01-") + kTrace + "-00f067aa0ba902b7-01-"), kTrace);
}

// Every single character that is another one makes it another value or none at all: what is taken is 32 digits whatever comes.
TEST(TraceId, WhatIsNotValidIsNone) {
    const std::string good = std::string("00-") + kTrace + "-00f067aa0ba902b7-01";
    for (const std::string& bad : {std::string(), std::string("00"), good.substr(0, 54), good + "-", good + "0", good + "-x", " " + good, good + " ",
                                   std::string("ff-") + kTrace + "-00f067aa0ba902b7-01", std::string("01-") + kTrace + "-00f067aa0ba902b7-01x",
                                   "00-" + std::string(32, '0') + "-00f067aa0ba902b7-01", std::string("00-") + kTrace + "-0000000000000000-01"}) {
        EXPECT_EQ(read(bad), "") << bad;
    }
    for (size_t at = 0; at < good.size(); ++at) {
        for (const char c : {'-', 'A', 'g', ' ', '\n', '\0', '"'}) {
            if (good[at] == c) continue;
            std::string text = good;
            text[at] = c;
            EXPECT_EQ(read(text), "") << text;
        }
    }
}

TEST(TraceId, SeveralAreNone) {
    Request request;
    EXPECT_EQ(trace_id(request), "");
    const std::string good = std::string("00-") + kTrace + "-00f067aa0ba902b7-01";
    request.headers = {{"traceparent", good}, {"traceparent", good}};
    EXPECT_EQ(trace_id(request), "");
}

}  // namespace
}  // namespace baton::http
