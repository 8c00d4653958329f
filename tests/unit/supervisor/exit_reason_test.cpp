#include "supervisor/exit_reason.hpp"

#include <gtest/gtest.h>

namespace baton::supervisor {
namespace {

TEST(ExitReason, IsTheReasonOfAReplicaThatCouldNotLoad) {
    const std::string text =
        "2026-01-01T00:00:00.000+00:00 info replica.weights how=private\n"
        "2026-01-01T00:00:01.000+00:00 error replica.load_failed reason=\"GPU 0 has not enough "
        "memory: \\\"3\\\" \\\\ 4\\u000abytes\" role=hybrid replica=0\n";
    EXPECT_EQ(exit_reason("exit code 1", text), "GPU 0 has not enough memory: \"3\" \\ 4\nbytes");
    EXPECT_EQ(
        exit_reason("exit code 1", "x error replica.load_failed reason=refused role=hybrid\nmore"),
        "refused");
    EXPECT_EQ(
        exit_reason(
            "exit code 1",
            R"({"time":"t","level":"error","event":"replica.load_failed","reason":"no \"file\"","role":"decode"})"),
        "no \"file\"");
}

TEST(ExitReason, IsTheLastOneWhereThereAreSeveral) {
    EXPECT_EQ(
        exit_reason("exit code 1",
                    "error replica.load_failed reason=one\nerror replica.load_failed reason=two\n"),
        "two");
}

TEST(ExitReason, IsTheEndOfTheOutputOtherwise) {
    EXPECT_EQ(exit_reason("killed by signal 9", ""), "killed by signal 9");
    EXPECT_EQ(exit_reason("killed by signal 9", "\n\n"), "killed by signal 9");
    EXPECT_EQ(exit_reason("exit code 3", "terminate called\n"), "exit code 3: terminate called");
    EXPECT_EQ(exit_reason("exit code 1", "replica.load_failed"),
              "exit code 1: replica.load_failed");
    EXPECT_EQ(exit_reason("exit code 1", "replica.load_failed reason=\"cut \\u00"), "cut u00");
}

TEST(ExitReason, LeavesOutWhatOurLogSaysOfOrdinaryThings) {
    const std::string text =
        "2026-01-01T00:00:00.000+00:00 info replica.loaded ms=3\n"
        "terminate called\n"
        "2026-01-01T00:00:01.000+00:00 warning replica.supervisor_lost attempt=1\n"
        "2026-01-01T00:00:01.000+00:00 debug engine.step rows=1\n";
    EXPECT_EQ(exit_reason("exit code 3", text), "exit code 3: terminate called\n2026-01-01T00:00:01.000+00:00 warning replica.supervisor_lost attempt=1");
    EXPECT_EQ(exit_reason("killed by signal 9", "2026-01-01T00:00:00.000+00:00 info xavier.linked peer=2"), "killed by signal 9");
    EXPECT_EQ(exit_reason("killed by signal 9", R"({"time":"t","level":"info","event":"replica.loaded"})"), "killed by signal 9");
    EXPECT_EQ(exit_reason("exit code 2", "no info of use"), "exit code 2: no info of use");
}

TEST(ExitText, NamesTheSignalOrTheCode) {
    EXPECT_EQ(exit_text(0), "exit code 0");
    EXPECT_EQ(exit_text(137), "exit code 137");
    EXPECT_EQ(exit_text(-9), "killed by signal 9 (SIGKILL)");
    EXPECT_EQ(exit_text(-11), "killed by signal 11 (SIGSEGV)");
    EXPECT_EQ(exit_text(-200), "killed by signal 200");
}

}  // namespace
}  // namespace baton::supervisor
