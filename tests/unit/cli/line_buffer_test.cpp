#include "cli/line_buffer.hpp"

#include <gtest/gtest.h>

#include <random>

#include "cli/terminal.hpp"

namespace baton::cli {
namespace {

TEST(LineBuffer, MovesAndErasesByCharactersNotBytes) {
    LineBuffer b;
    b.insert("aé日");
    b.left();
    EXPECT_EQ(b.cursor(), 3u);
    b.erase_before();
    EXPECT_EQ(b.text(), "a日");
    b.erase_after();
    EXPECT_EQ(b.text(), "a");
    b.erase_after();
    b.right();
    EXPECT_EQ(b.text(), "a");
    b.erase_before();
    b.erase_before();
    b.left();
    EXPECT_EQ(b.text(), "");
}

TEST(LineBuffer, ACombiningMarkGoesWithItsCharacter) {
    LineBuffer b;
    b.insert("xe\u0301y");
    b.left();
    b.left();
    EXPECT_EQ(b.cursor(), 1u);
    b.right();
    EXPECT_EQ(b.cursor(), 4u);
    b.erase_before();
    EXPECT_EQ(b.text(), "xy");
}

TEST(LineBuffer, WordsAndCuts) {
    LineBuffer b;
    b.insert("one two  three");
    b.word_left();
    EXPECT_EQ(b.cursor(), 9u);
    b.cut_word_before();
    EXPECT_EQ(b.text(), "one three");
    b.paste();
    EXPECT_EQ(b.text(), "one two  three");
    b.line_begin();
    b.word_right();
    EXPECT_EQ(b.cursor(), 3u);
    b.cut_to_line_end();
    EXPECT_EQ(b.text(), "one");
    b.cut_to_line_begin();
    EXPECT_EQ(b.text(), "");
    b.cut_to_line_begin();  // nothing to cut: what was cut before stays
    b.paste();
    EXPECT_EQ(b.text(), "one");
}

TEST(LineBuffer, LinesUpAndDownKeepTheColumn) {
    LineBuffer b;
    b.insert("first\nab\nthird");
    EXPECT_FALSE(b.line_down());
    EXPECT_TRUE(b.line_up());
    EXPECT_EQ(b.cursor(), 8u);  // the end of the shorter line
    EXPECT_TRUE(b.line_up());
    EXPECT_EQ(b.cursor(), 2u);
    EXPECT_FALSE(b.line_up());
    b.line_end();
    EXPECT_EQ(b.cursor(), 5u);
    EXPECT_TRUE(b.line_down());
    b.line_begin();
    EXPECT_EQ(b.cursor(), 6u);
}

// Whatever is done, the cursor stands between two whole characters of the text.
TEST(LineBuffer, StaysWellFormedUnderAnyOperations) {
    std::mt19937 random(7);
    const std::string pieces[] = {"a", "é", "日本", "\n", "e\u0301", " ", "\t", "😀", "word "};
    using Operation = void (LineBuffer::*)();
    const Operation operations[] = {&LineBuffer::erase_before, &LineBuffer::erase_after, &LineBuffer::left, &LineBuffer::right,
                                    &LineBuffer::word_left, &LineBuffer::word_right, &LineBuffer::line_begin, &LineBuffer::line_end,
                                    &LineBuffer::cut_to_line_end, &LineBuffer::cut_to_line_begin, &LineBuffer::cut_word_before,
                                    &LineBuffer::paste};
    for (int round = 0; round < 200; ++round) {
        LineBuffer b;
        for (int step = 0; step < 60 && b.text().size() < 2000; ++step) {
            const size_t pick = random() % 24;
            if (pick < 9) b.insert(pieces[pick]);
            else if (pick < 21) (b.*operations[pick - 9])();
            else if (pick == 21) (void)b.line_up();
            else (void)b.line_down();
            ASSERT_LE(b.cursor(), b.text().size());
            ASSERT_EQ(printable(b.text()).find('?'), std::string::npos) << b.text();
            ASSERT_EQ(printable(b.text().substr(0, b.cursor())).find('?'), std::string::npos) << b.text();
            const size_t columns = 2 + random() % 12;
            const Screen s = lay_out(b, ">", ".", columns);
            ASSERT_LT(s.cursor_row, s.rows.size());
            ASSERT_LE(s.cursor_column, columns);
            for (const std::string& row : s.rows) ASSERT_LE(columns_of(row), columns) << b.text();
        }
    }
}

TEST(LayOut, WrapsAndShowsLines) {
    LineBuffer b;
    b.insert("abcdef\ngh");
    const Screen s = lay_out(b, "> ", ". ", 5);
    EXPECT_EQ(s.rows, (std::vector<std::string>{"> abc", "def", ". gh"}));
    EXPECT_EQ(s.cursor_row, 2u);
    EXPECT_EQ(s.cursor_column, 4u);
    b.set("abc");  // fills the row: the cursor waits on the next one
    EXPECT_EQ(lay_out(b, "> ", ". ", 5).cursor_row, 1u);
    b.set("a\x1b[2J");  // nothing that drives the terminal
    EXPECT_EQ(lay_out(b, "", "", 40).rows[0], "a?[2J");
}

TEST(History, GoesUpAndDownAndKeepsTheDraft) {
    History h(3);
    EXPECT_EQ(h.up("x"), nullptr);
    for (const char* line : {"a", "b", "b", "", "c", "d"}) h.add(line);
    EXPECT_EQ(h.entries(), (std::vector<std::string>{"b", "c", "d"}));
    EXPECT_EQ(*h.up("draft"), "d");
    EXPECT_EQ(*h.up("d"), "c");
    EXPECT_EQ(*h.up("c"), "b");
    EXPECT_EQ(h.up("b"), nullptr);
    EXPECT_EQ(*h.down(), "c");
    EXPECT_EQ(*h.down(), "d");
    EXPECT_EQ(*h.down(), "draft");
    EXPECT_EQ(h.down(), nullptr);
}

TEST(History, IsWrittenAndReadWithLineBreaks) {
    History h;
    h.add("two\nlines \\n");
    h.add("plain");
    History again;
    again.from_text(h.to_text());
    EXPECT_EQ(again.entries(), h.entries());
}

}  // namespace
}  // namespace baton::cli
