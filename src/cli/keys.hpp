#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace baton::cli {

enum class KeyKind : uint8_t {
    kText,  ///< characters to insert, also a whole paste
    kEnter,
    kNewline,  ///< Alt-Enter: a line break inside the text
    kBackspace,
    kDelete,
    kLeft,
    kRight,
    kUp,
    kDown,
    kHome,
    kEnd,
    kWordLeft,
    kWordRight,
    kCutToEnd,
    kCutToBegin,
    kCutWord,
    kPaste,
    kClearScreen,
    kInterrupt,  ///< Ctrl-C
    kEndOfInput, ///< Ctrl-D
    kSuspend,    ///< Ctrl-Z
    kOther,      ///< a key without a meaning here
};

struct Key {
    KeyKind kind = KeyKind::kOther;
    std::string text;

    friend bool operator==(const Key&, const Key&) = default;
};

/// Makes keys of the bytes that a terminal in raw mode sends: UTF-8, the control keys of Emacs and readline, the escape
/// sequences of xterm and its like, bracketed paste. Bytes may come in pieces of any size. What a paste holds is text,
/// whatever it looks like.
class KeyReader {
  public:
    void feed(std::string_view bytes);
    /// The next whole key; false when none is there.
    [[nodiscard]] bool next(Key& out);
    /// Whether an escape sequence or character has begun and more is awaited.
    [[nodiscard]] bool is_partial() const { return !pending_.empty() || pasting_; }
    /// Nothing more came for a while: a lone ESC is a key by itself.
    void flush();

  private:
    /// Takes one key from the begin of pending_; false when more bytes are needed.
    bool take();
    bool take_escape();
    bool take_paste();
    void emit(KeyKind kind, std::string text = {});

    std::string pending_;
    bool pasting_ = false;
    std::deque<Key> keys_;
};

}  // namespace baton::cli
