#include "text/jinja_strings.hpp"

#include <algorithm>
#include <cstring>

#include "text/unicode.hpp"

namespace baton::text::jinja {
namespace {

/// Walks a string's user ranges in step with a growing position.
class TaintCursor {
  public:
    explicit TaintCursor(const StrObject& text) : it_(text.taint.begin()), end_(text.taint.end()) {}
    bool at(size_t pos) {
        while (it_ != end_ && it_->end <= pos) ++it_;
        return it_ != end_ && it_->begin <= pos;
    }

  private:
    std::vector<TaintRange>::const_iterator it_;
    std::vector<TaintRange>::const_iterator end_;
};

bool is_line_end(uint32_t code) {
    return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
}

void add_lower(std::string& out, std::string_view text, size_t pos, uint32_t code) {
    if (code == 0x3A3 && is_final_sigma(text, pos)) {
        append_utf8(out, 0x3C2);
    } else {
        append_case(out, code, Case::kLower);
    }
}

Value split_space(Vm& vm, const StrObject& text, int64_t count, bool from_right) {
    std::vector<Value> parts;
    const std::string_view view = text.text;
    const auto space_at = [&](size_t pos) { return is_python_space(decode_utf8(view, pos).code); };
    if (!from_right) {
        for (size_t pos = 0;;) {
            while (pos < view.size() && space_at(pos)) pos += decode_utf8(view, pos).length;
            if (pos >= view.size()) break;
            if (count-- == 0) {
                if (!vm.push(parts, part_of(vm, text, pos, view.size()))) return {};
                break;
            }
            const size_t begin = pos;
            while (pos < view.size() && !space_at(pos)) pos += decode_utf8(view, pos).length;
            if (!vm.push(parts, part_of(vm, text, begin, pos))) return {};
        }
        return vm.make_list(std::move(parts));
    }
    for (size_t pos = view.size();;) {
        while (pos > 0 && space_at(previous_utf8(view, pos))) pos = previous_utf8(view, pos);
        if (pos == 0) break;
        if (count-- == 0) {
            if (!vm.push(parts, part_of(vm, text, 0, pos))) return {};
            break;
        }
        const size_t end = pos;
        while (pos > 0 && !space_at(previous_utf8(view, pos))) pos = previous_utf8(view, pos);
        if (!vm.push(parts, part_of(vm, text, pos, end))) return {};
    }
    std::reverse(parts.begin(), parts.end());
    return vm.make_list(std::move(parts));
}

}  // namespace

bool is_python_space(uint32_t code) {
    return (char_class(code) & kSpace) != 0 || (code >= 0x1C && code <= 0x1F);
}

StripSpan strip_span(Vm& vm, const StrObject& text, const StrObject* chars, bool left, bool right) {
    const std::string_view view = text.text;
    (void)vm.spend(view.size() / 64);
    const auto drop = [&](size_t pos) {
        const CodePoint cp = decode_utf8(view, pos);
        if (chars == nullptr) return is_python_space(cp.code);
        (void)vm.spend(chars->text.size() / 32);
        return memmem(chars->text.data(), chars->text.size(), view.data() + pos, cp.length) !=
               nullptr;
    };
    StripSpan span{0, view.size()};
    while (left && span.begin < span.end && !vm.failed() && drop(span.begin)) {
        span.begin += decode_utf8(view, span.begin).length;
    }
    while (right && span.end > span.begin && !vm.failed()) {
        const size_t last = previous_utf8(view, span.end);
        if (!drop(last)) break;
        span.end = last;
    }
    return span;
}

Value part_of(Vm& vm, const StrObject& text, size_t begin, size_t end) {
    StrBuilder out(vm);
    out.add_part(text, begin, end);
    return out.finish(text.markup);
}

Value strip(Vm& vm, const StrObject& text, const StrObject* chars, bool left, bool right) {
    const StripSpan span = strip_span(vm, text, chars, left, right);
    return part_of(vm, text, span.begin, span.end);
}

Value map_case(Vm& vm, const StrObject& text, Case wanted) {
    StrBuilder out(vm);
    TaintCursor taint(text);
    bool inside = false;  // title: after a cased character
    std::string mapped;
    (void)vm.spend(text.text.size() / 16);
    for (size_t pos = 0; pos < text.text.size() && !vm.failed();) {
        const CodePoint cp = decode_utf8(text.text, pos);
        mapped.clear();
        if (wanted == Case::kLower || (wanted == Case::kTitle && inside)) {
            add_lower(mapped, text.text, pos, cp.code);
        } else {
            append_case(mapped, cp.code, wanted);
        }
        inside = is_cased(cp.code);
        out.add(mapped, taint.at(pos));
        pos += cp.length;
    }
    return out.finish(text.markup);
}

Value capitalize(Vm& vm, const StrObject& text) {
    StrBuilder out(vm);
    TaintCursor taint(text);
    std::string mapped;
    for (size_t pos = 0; pos < text.text.size() && vm.spend();) {
        const CodePoint cp = decode_utf8(text.text, pos);
        mapped.clear();
        if (pos == 0) {
            append_case(mapped, cp.code, Case::kTitle);
        } else {
            add_lower(mapped, text.text, pos, cp.code);
        }
        out.add(mapped, taint.at(pos));
        pos += cp.length;
    }
    return out.finish(text.markup);
}

Value swap_case(Vm& vm, const StrObject& text) {
    StrBuilder out(vm);
    TaintCursor taint(text);
    std::string mapped;
    for (size_t pos = 0; pos < text.text.size() && vm.spend();) {
        const CodePoint cp = decode_utf8(text.text, pos);
        mapped.clear();
        if (is_upper(cp.code)) {
            add_lower(mapped, text.text, pos, cp.code);
        } else if (is_lower(cp.code)) {
            append_case(mapped, cp.code, Case::kUpper);
        } else {
            append_utf8(mapped, cp.code);
        }
        out.add(mapped, taint.at(pos));
        pos += cp.length;
    }
    return out.finish(text.markup);
}

size_t find_in(std::string_view text, std::string_view wanted, size_t begin, size_t end,
               bool last) {
    if (begin > end || end > text.size() || wanted.size() > end - begin)
        return std::string_view::npos;
    const std::string_view area = text.substr(begin, end - begin);
    if (wanted.empty()) return last ? end : begin;
    if (last) {
        if (wanted.size() <= 16) {
            const size_t at = area.rfind(wanted);
            return at == std::string_view::npos ? at : at + begin;
        }
        // rfind may be quadratic; memmem over the reversed texts is not.
        const std::string back(area.rbegin(), area.rend());
        const std::string needle(wanted.rbegin(), wanted.rend());
        const void* hit = memmem(back.data(), back.size(), needle.data(), needle.size());
        if (hit == nullptr) return std::string_view::npos;
        return end - static_cast<size_t>(static_cast<const char*>(hit) - back.data()) -
               wanted.size();
    }
    const void* at = memmem(area.data(), area.size(), wanted.data(), wanted.size());
    return at == nullptr ? std::string_view::npos
                         : static_cast<size_t>(static_cast<const char*>(at) - text.data());
}

Value replace(Vm& vm, const StrObject& text, const StrObject& from, const StrObject& to,
              int64_t count) {
    StrBuilder out(vm);
    const std::string_view view = text.text;
    size_t pos = 0;
    if (from.text.empty()) {  // between all characters
        for (; count != 0 && vm.spend(); --count) {
            out.add(to);
            if (pos >= view.size()) return out.finish(text.markup);
            const size_t next = pos + decode_utf8(view, pos).length;
            out.add_part(text, pos, next);
            pos = next;
        }
    }
    while (count != 0 && !from.text.empty() && vm.spend()) {
        const size_t at = find_in(view, from.text, pos, view.size(), false);
        if (at == std::string_view::npos) break;
        out.add_part(text, pos, at);
        out.add(to);
        pos = at + from.text.size();
        --count;
    }
    (void)vm.spend(view.size() / 64);
    out.add_part(text, pos, view.size());
    return out.finish(text.markup);
}

Value join(Vm& vm, const StrObject& separator, const std::vector<Value>& items) {
    StrBuilder out(vm);
    for (size_t i = 0; i < items.size() && vm.spend(); ++i) {
        if (!items[i].is_str()) {
            return vm.error("sequence item " + std::to_string(i) + ": expected str instance, " +
                            std::string(type_name(items[i].kind)) + " found");
        }
        if (i > 0) out.add(separator);
        out.add(items[i].str());
    }
    return out.finish(separator.markup);
}

Value split(Vm& vm, const StrObject& text, const StrObject* separator, int64_t count,
            bool from_right) {
    (void)vm.spend(text.text.size() / 64);
    if (separator == nullptr) return split_space(vm, text, count, from_right);
    const std::string_view wanted = separator->text;
    if (wanted.empty()) return vm.error("empty separator");
    std::vector<Value> parts;
    if (!from_right) {
        size_t pos = 0;
        for (; count != 0; --count) {
            const size_t at = find_in(text.text, wanted, pos, text.text.size(), false);
            if (at == std::string_view::npos) break;
            if (!vm.push(parts, part_of(vm, text, pos, at))) return {};
            pos = at + wanted.size();
        }
        if (!vm.push(parts, part_of(vm, text, pos, text.text.size()))) return {};
        return vm.make_list(std::move(parts));
    }
    size_t end = text.text.size();
    for (; count != 0; --count) {
        if (!vm.spend(wanted.size() <= 16 ? 1 : end / 64)) return {};
        const size_t at = find_in(text.text, wanted, 0, end, true);
        if (at == std::string_view::npos) break;
        if (!vm.push(parts, part_of(vm, text, at + wanted.size(), end))) return {};
        end = at;
    }
    if (!vm.push(parts, part_of(vm, text, 0, end))) return {};
    std::reverse(parts.begin(), parts.end());
    return vm.make_list(std::move(parts));
}

std::vector<Value> split_lines(Vm& vm, const StrObject& text, bool keep_ends) {
    std::vector<Value> lines;
    const std::string_view view = text.text;
    size_t begin = 0;
    for (size_t pos = 0; pos < view.size();) {
        const CodePoint cp = decode_utf8(view, pos);
        size_t next = pos + cp.length;
        if (is_line_end(cp.code)) {
            if (cp.code == '\r' && next < view.size() && view[next] == '\n') ++next;
            if (!vm.push(lines, part_of(vm, text, begin, keep_ends ? next : pos))) return lines;
            begin = next;
        }
        pos = next;
    }
    if (begin < view.size()) (void)vm.push(lines, part_of(vm, text, begin, view.size()));
    return lines;
}

Value escape_html(Vm& vm, const StrObject& text) {
    StrBuilder out(vm);
    TaintCursor taint(text);
    size_t clean = 0;
    for (size_t pos = 0; pos < text.text.size(); ++pos) {
        std::string_view escaped;
        switch (text.text[pos]) {
            case '&':
                escaped = "&amp;";
                break;
            case '<':
                escaped = "&lt;";
                break;
            case '>':
                escaped = "&gt;";
                break;
            case '"':
                escaped = "&#34;";
                break;
            case '\'':
                escaped = "&#39;";
                break;
            default:
                continue;
        }
        if (!vm.spend()) return {};
        out.add_part(text, clean, pos);
        out.add(escaped, taint.at(pos));
        clean = pos + 1;
    }
    out.add_part(text, clean, text.text.size());
    return out.finish(true);
}

Value pad(Vm& vm, const StrObject& text, int64_t width, std::string_view fill, char align) {
    const auto have = static_cast<int64_t>(text.chars);
    const int64_t room = width > have ? width - have : 0;
    if (room > static_cast<int64_t>(limits::kTemplateOutputBytesMax))
        return vm.error("a padded string is too long");
    int64_t left = align == '>' ? room : 0;
    if (align == '^') left = room / 2 + (room & width & 1);
    StrBuilder out(vm);
    for (int64_t i = 0; i < left && vm.spend(); ++i) out.add(fill);
    out.add(text);
    for (int64_t i = left; i < room && vm.spend(); ++i) out.add(fill);
    return out.finish(text.markup);
}

}  // namespace baton::text::jinja
