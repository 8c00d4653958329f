#include "cli/table.hpp"

#include <gtest/gtest.h>

#include "cli/progress_line.hpp"
#include "cli/terminal.hpp"

namespace baton::cli {
namespace {

TEST(Terminal, CountsColumnsOfWideAndCombiningCharacters) {
    EXPECT_EQ(columns_of("abc"), 3u);
    EXPECT_EQ(columns_of("日本"), 4u);
    EXPECT_EQ(columns_of("e\u0301"), 1u);
    EXPECT_EQ(shortened("abcdef", 4), "abc…");
    EXPECT_EQ(shortened("日本語", 4), "日…");
    EXPECT_EQ(shortened("abc", 3), "abc");
    EXPECT_EQ(shortened("abc", 0), "");
}

TEST(Terminal, NoControlCharacterGetsThrough) {
    EXPECT_EQ(printable("a\x1b[31mb\r\x07"), "a?[31mb??");
    EXPECT_EQ(printable("x\xc2\x9b" "31m"), "x?31m");  // the same sequence's begin as one character of UTF-8
    EXPECT_EQ(printable("a\nb\tc é"), "a\nb\tc é");
    EXPECT_EQ(printable("\xff\xfe"), "??");
}

TEST(Table, AlignsByColumnsOfTheTerminal) {
    const Table table{{{"NAME"}, {"SIZE", true}, {"X"}}, {{"日本", "7", "a"}, {"plain", "0.5", ""}, {"line\nbreak", "12"}}};
    EXPECT_EQ(format_table(table, 0),
              "NAME        SIZE  X\n"
              "日本           7  a\n"
              "plain        0.5\n"
              "line break    12\n");
}

TEST(Table, IsCutToTheTerminalWidestColumnFirst) {
    Table table{{{"A"}, {"B"}, {"C"}}, {{std::string(40, 'a'), "b", std::string(20, 'c')}}};
    for (size_t columns = 24; columns < 70; ++columns) {
        const std::string text = format_table(table, columns);
        size_t widest = 0;
        for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
            widest = std::max(widest, columns_of(text.substr(begin, end - begin)));
        EXPECT_LE(widest, columns);
        EXPECT_EQ(widest, std::min<size_t>(columns, 65));
    }
    EXPECT_EQ(format_table(table, 5), format_table(table, 21));  // never to nothing
}

TEST(Progress, FitsTheLineAndIsNotFullTooEarly) {
    ProgressLine::State state{"loading", 0.999, "1/2 replicas ready", 75};
    const std::string line = format_progress("my-model", state, 80);
    EXPECT_NE(line.find("my-model  loading"), std::string::npos);
    EXPECT_NE(line.find(" 99%"), std::string::npos);
    EXPECT_NE(line.find("1/2 replicas ready"), std::string::npos);
    EXPECT_NE(line.find("1:15"), std::string::npos);
    for (size_t columns = 1; columns < 120; ++columns) EXPECT_LE(columns_of(format_progress("my-model", state, columns)), columns);
    state.fraction = std::numeric_limits<double>::quiet_NaN();
    EXPECT_NE(format_progress("m", state, 80).find("  0%"), std::string::npos);
    state.fraction = 7;
    EXPECT_NE(format_progress("m", state, 80).find("100%"), std::string::npos);
}

TEST(Progress, BytesAreShort) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(999), "999 B");
    EXPECT_EQ(format_bytes(98'362'432), "98.4 MB");
    EXPECT_EQ(format_bytes(1.5e9), "1.50 GB");
}

}  // namespace
}  // namespace baton::cli
