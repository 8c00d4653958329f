#include "cli/keys.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cli/line_editor.hpp"

namespace baton::cli {
namespace {

std::vector<Key> read(std::string_view bytes, size_t piece = 1000) {
    KeyReader reader;
    for (size_t at = 0; at < bytes.size(); at += piece) reader.feed(bytes.substr(at, piece));
    std::vector<Key> out;
    for (Key key; reader.next(key);) {
        // Where text was cut between two pieces does not matter.
        if (!out.empty() && key.kind == KeyKind::kText && out.back().kind == KeyKind::kText) out.back().text += key.text;
        else out.push_back(key);
    }
    return out;
}

TEST(KeyReader, ReadsKeysInPiecesOfAnySize) {
    const std::string bytes = "h\xc3\xa9\x1b[A\x1bOB\x1b[3~\x1b[1;5C\x7f\x01\x05\x1b[200~x\r\ny\x1b[Az\tq\x1b[201~\x1b\r\r\x03\x04";
    const std::vector<Key> expected = {
        {KeyKind::kText, "hé"}, {KeyKind::kUp, ""}, {KeyKind::kDown, ""}, {KeyKind::kDelete, ""}, {KeyKind::kWordRight, ""},
        {KeyKind::kBackspace, ""}, {KeyKind::kHome, ""}, {KeyKind::kEnd, ""}, {KeyKind::kText, "x\ny[Az\tq"},
        {KeyKind::kNewline, ""}, {KeyKind::kEnter, ""}, {KeyKind::kInterrupt, ""}, {KeyKind::kEndOfInput, ""}};
    for (size_t piece = 1; piece <= bytes.size(); ++piece) EXPECT_EQ(read(bytes, piece), expected) << piece;
}

TEST(KeyReader, ALoneEscapeIsAKeyOnceNothingFollows) {
    KeyReader reader;
    reader.feed("\x1b");
    Key key;
    EXPECT_FALSE(reader.next(key));
    EXPECT_TRUE(reader.is_partial());
    reader.flush();
    ASSERT_TRUE(reader.next(key));
    EXPECT_EQ(key.kind, KeyKind::kOther);
    EXPECT_FALSE(reader.is_partial());
}

// Unknown sequences and broken UTF-8 never reach the text, and never stop what follows.
TEST(KeyReader, DropsWhatItDoesNotKnow) {
    EXPECT_EQ(read("\x1b[38;5;1Xa"), (std::vector<Key>{{KeyKind::kOther, ""}, {KeyKind::kText, "a"}}));
    EXPECT_EQ(read("\xff\xfe\x80z"), (std::vector<Key>{{KeyKind::kText, "z"}}));
    EXPECT_EQ(read("\xe6\x97q"), (std::vector<Key>{{KeyKind::kText, "q"}}));
    std::mt19937 random(3);
    for (int round = 0; round < 500; ++round) {
        std::string bytes;
        for (int i = 0; i < 40; ++i) bytes += static_cast<char>(random() % 5 == 0 ? 0x1b : random() % 256);
        KeyReader reader;
        reader.feed(bytes);
        reader.flush();
        for (Key key; reader.next(key);) ASSERT_EQ(key.text.find('\x1b'), std::string::npos);
    }
}

/// What a line is after these bytes; the last one must submit it.
std::string entered(History& history, std::string_view bytes) {
    Editing editing(history);
    KeyReader reader;
    reader.feed(bytes);
    Editing::Outcome outcome = Editing::Outcome::kGoOn;
    for (Key key; outcome == Editing::Outcome::kGoOn && reader.next(key);) outcome = editing.apply(key);
    EXPECT_EQ(outcome, Editing::Outcome::kSubmit) << bytes;
    history.add(editing.buffer().text());
    return editing.buffer().text();
}

TEST(Editing, LinesAreEditedPastedAndRecalled) {
    History history;
    EXPECT_EQ(entered(history, "helo\x1b[Dl\r"), "hello");
    EXPECT_EQ(entered(history, "\x1b[200~one\rtwo\r\x1b[201~three\r"), "one\ntwo\nthree");
    EXPECT_EQ(entered(history, "first\\\rsecond\r"), "first\nsecond");
    EXPECT_EQ(entered(history, "a\x1b\rb\r"), "a\nb");
    EXPECT_EQ(entered(history, "\"\"\"\rx\r\ry\r\"\"\"\r"), "x\n\ny");
    EXPECT_EQ(entered(history, "\x10\x10\x10\x10\x10\x10\x10\x10\x10\x10\x10\x10\r"), "hello");
    EXPECT_EQ(entered(history, "draft\x1b[A\x1b[B!\r"), "draft!");
}

TEST(Editing, ControlKeysLeaveOrEndTheLine) {
    History history;
    const auto outcome = [&](std::string_view before, KeyKind kind) {
        Editing editing(history);
        if (!before.empty()) (void)editing.apply({KeyKind::kText, std::string(before)});
        return editing.apply({kind, ""});
    };
    EXPECT_EQ(outcome("", KeyKind::kEndOfInput), Editing::Outcome::kEnd);
    EXPECT_EQ(outcome("x", KeyKind::kEndOfInput), Editing::Outcome::kGoOn);
    EXPECT_EQ(outcome("x", KeyKind::kInterrupt), Editing::Outcome::kInterrupt);
    EXPECT_EQ(outcome("", KeyKind::kClearScreen), Editing::Outcome::kClearScreen);
    EXPECT_EQ(outcome("", KeyKind::kSuspend), Editing::Outcome::kSuspend);
}

}  // namespace
}  // namespace baton::cli
