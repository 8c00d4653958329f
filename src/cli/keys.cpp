#include "cli/keys.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace baton::cli {
namespace {

constexpr std::string_view kPasteBegin = "\x1b[200~", kPasteEnd = "\x1b[201~";
/// Longer ones are no escape sequences.
constexpr size_t kEscapeBytesMax = 32;

constexpr std::array<std::pair<std::string_view, KeyKind>, 26> kSequences = {{
    {"\x1b[A", KeyKind::kUp},          {"\x1bOA", KeyKind::kUp},         {"\x1b[B", KeyKind::kDown},
    {"\x1bOB", KeyKind::kDown},        {"\x1b[C", KeyKind::kRight},      {"\x1bOC", KeyKind::kRight},
    {"\x1b[D", KeyKind::kLeft},        {"\x1bOD", KeyKind::kLeft},       {"\x1b[H", KeyKind::kHome},
    {"\x1bOH", KeyKind::kHome},        {"\x1b[1~", KeyKind::kHome},      {"\x1b[7~", KeyKind::kHome},
    {"\x1b[F", KeyKind::kEnd},         {"\x1bOF", KeyKind::kEnd},        {"\x1b[4~", KeyKind::kEnd},
    {"\x1b[8~", KeyKind::kEnd},        {"\x1b[3~", KeyKind::kDelete},    {"\x1b[1;5C", KeyKind::kWordRight},
    {"\x1b[1;5D", KeyKind::kWordLeft}, {"\x1b[1;3C", KeyKind::kWordRight}, {"\x1b[1;3D", KeyKind::kWordLeft},
    {"\x1b" "f", KeyKind::kWordRight}, {"\x1b" "b", KeyKind::kWordLeft}, {"\x1b\x7f", KeyKind::kCutWord},
    {"\x1b\r", KeyKind::kNewline},     {"\x1b\n", KeyKind::kNewline},
}};

KeyKind control_key(char c) {
    switch (c) {
        case '\r': return KeyKind::kEnter;
        case '\n': return KeyKind::kEnter;  // a line that was typed before the terminal was ours
        case 0x01: return KeyKind::kHome;
        case 0x02: return KeyKind::kLeft;
        case 0x03: return KeyKind::kInterrupt;
        case 0x04: return KeyKind::kEndOfInput;
        case 0x05: return KeyKind::kEnd;
        case 0x06: return KeyKind::kRight;
        case 0x08: case 0x7f: return KeyKind::kBackspace;
        case 0x0b: return KeyKind::kCutToEnd;
        case 0x0c: return KeyKind::kClearScreen;
        case 0x0e: return KeyKind::kDown;
        case 0x10: return KeyKind::kUp;
        case 0x15: return KeyKind::kCutToBegin;
        case 0x17: return KeyKind::kCutWord;
        case 0x19: return KeyKind::kPaste;
        case 0x1a: return KeyKind::kSuspend;
        default: return KeyKind::kOther;
    }
}

/// Bytes of the character that such a byte begins; 1 for one that begins none.
size_t utf8_bytes(char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0xC2 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 1;
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

void KeyReader::feed(std::string_view bytes) {
    pending_ += bytes;
    while (!pending_.empty() && (pasting_ ? take_paste() : take())) {}
}

bool KeyReader::next(Key& out) {
    if (keys_.empty()) return false;
    out = std::move(keys_.front());
    keys_.pop_front();
    return true;
}

void KeyReader::flush() {
    if (pasting_) return;
    while (!pending_.empty()) {
        pending_.erase(0, 1);
        emit(KeyKind::kOther);
        while (!pending_.empty() && take()) {}
    }
}

void KeyReader::emit(KeyKind kind, std::string text) {
    // Characters in a row are one key: a paste without brackets need not be drawn character by character.
    if (kind == KeyKind::kText && !keys_.empty() && keys_.back().kind == KeyKind::kText) keys_.back().text += text;
    else keys_.push_back({kind, std::move(text)});
}

bool KeyReader::take() {
    const char first = pending_[0];
    if (first == '\x1b') return take_escape();
    if (static_cast<unsigned char>(first) < 0x20 || first == 0x7f) {
        pending_.erase(0, 1);
        if (first == '\t') emit(KeyKind::kText, "\t");
        else emit(control_key(first));
        return true;
    }
    const size_t bytes = utf8_bytes(first);
    for (size_t i = 1; i < bytes; ++i) {
        if (i == pending_.size()) return false;
        if (is_continuation(pending_[i])) continue;
        pending_.erase(0, i);  // broken off: dropped
        return true;
    }
    const std::string character = pending_.substr(0, bytes);
    pending_.erase(0, bytes);
    if (bytes > 1 || static_cast<unsigned char>(first) < 0x80) emit(KeyKind::kText, character);
    return true;
}

bool KeyReader::take_escape() {
    if (pending_.starts_with(kPasteBegin)) {
        pending_.erase(0, kPasteBegin.size());
        pasting_ = true;
        return true;
    }
    for (const auto& [sequence, kind] : kSequences)
        if (pending_.starts_with(sequence)) {
            pending_.erase(0, sequence.size());
            emit(kind);
            return true;
        }
    if (pending_.size() == 1) return false;
    if (pending_[1] != '[' && pending_[1] != 'O') {  // Alt and a key that means nothing
        pending_.erase(0, 2);
        emit(KeyKind::kOther);
        return true;
    }
    // A sequence ends with its first byte of 0x40 to 0x7e.
    const auto end = std::find_if(pending_.begin() + 2, pending_.end(), [](char c) { return c >= 0x40 && c <= 0x7e; });
    if (end == pending_.end() && pending_.size() < kEscapeBytesMax) return false;
    pending_.erase(pending_.begin(), end == pending_.end() ? end : end + 1);
    emit(KeyKind::kOther);
    return true;
}

bool KeyReader::take_paste() {
    const size_t end = pending_.find(kPasteEnd);
    if (end == std::string::npos) return false;
    std::string text;
    for (size_t i = 0; i < end; ++i) {
        const char c = pending_[i];
        if (c == '\r') {
            text += '\n';
            if (i + 1 < end && pending_[i + 1] == '\n') ++i;
        } else if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') {
            text += c;
        }
    }
    pending_.erase(0, end + kPasteEnd.size());
    pasting_ = false;
    emit(KeyKind::kText, std::move(text));
    return true;
}

}  // namespace baton::cli
