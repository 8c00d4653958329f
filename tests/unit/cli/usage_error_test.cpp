#include "cli/usage_error.hpp"

#include <gtest/gtest.h>

namespace baton::cli {
namespace {

TEST(UsageError, IsSaidInPlainWords) {
    EXPECT_EQ(plain_usage_error("The following arguments were not expected: 3 --http-threads"), "there is no option --http-threads");
    EXPECT_EQ(plain_usage_error("The following argument was not expected: extra"), "'extra' is not expected here");
    EXPECT_EQ(plain_usage_error("The following arguments were not expected: second first"), "'first' is not expected here");
    EXPECT_EQ(plain_usage_error("Could not convert: --replica = abc"), "--replica: 'abc' is not a number that it takes");
    EXPECT_EQ(plain_usage_error("--port: 1 required TEXT missing"), "--port needs a value");
    EXPECT_EQ(plain_usage_error("--input-tokens excludes --mix"), "--input-tokens and --mix do not go together");
    EXPECT_EQ(plain_usage_error("A subcommand is required"), "a command is missing");
    EXPECT_EQ(plain_usage_error("--rate: Value x not in range 0.000000 to 1000000.000000"), "--rate: Value x not in range 0 to 1000000");
    EXPECT_EQ(plain_usage_error("--interval-ms: Value 0 not in range 0.001000 to 10000000.000000"), "--interval-ms: Value 0 not in range 0.001 to 10000000");
    EXPECT_EQ(plain_usage_error("--requests: Value 0 not in range 1 to 1000000"), "--requests: Value 0 not in range 1 to 1000000");
    EXPECT_EQ(plain_usage_error("--rate: Value 10.0.0.10 not in range 0.000000 to 1.500000"), "--rate: Value 10.0.0.10 not in range 0 to 1.5");
    EXPECT_EQ(plain_usage_error("--model-uid is required"), "--model-uid is required");
    EXPECT_EQ(plain_usage_error(""), "");
}

}  // namespace
}  // namespace baton::cli
