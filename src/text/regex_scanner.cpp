#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "text/split_scanner.hpp"
#include "text/unicode.hpp"

namespace baton::text {
namespace {

constexpr size_t kPatternBytesMax = 16 * 1024;
constexpr uint32_t kMatchLimit = 1'000'000;
constexpr uint32_t kDepthLimit = 10'000;
constexpr uint32_t kHeapLimitKib = 16 * 1024;
constexpr size_t kJitStackBytesMax = 1024 * 1024;

struct CodeFree {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct DataFree {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct ContextFree {
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct StackFree {
    void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

/// White space as Unicode has it. PCRE2's own \s takes U+180E in too, which the tokenizers' engines
/// do not.
constexpr std::string_view kSpaceSet =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string spell_out_space(std::string_view pattern) {
    std::string out;
    bool in_class = false;
    for (size_t i = 0; i < pattern.size(); ++i) {
        const char c = pattern[i];
        const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
        if (c == '\\' && next != '\0') {
            if (next == 's') {
                out.append(in_class ? "" : "[").append(kSpaceSet).append(in_class ? "" : "]");
            } else if (next == 'S' && !in_class) {
                out.append("[^").append(kSpaceSet).append("]");
            } else {
                out.append(pattern, i, 2);
            }
            ++i;
            continue;
        }
        if (c == '[' && !in_class) {
            in_class = true;
        } else if (c == ']' && in_class) {
            in_class = false;
        }
        out += c;
    }
    return out;
}

class PcreScanner final : public SplitScanner {
  public:
    explicit PcreScanner(pcre2_code* code) : code_(code) {}

    // A pattern that hits the match limit stops splitting: the rest of the text is one unmatched
    // piece. Only a hostile pattern does that, and the answer is still bounded.
    void find_all(std::string_view text, std::vector<Span>& out) const override {
        const std::unique_ptr<pcre2_match_data, DataFree> data(
            pcre2_match_data_create_from_pattern(code_.get(), nullptr));
        const std::unique_ptr<pcre2_match_context, ContextFree> context(
            pcre2_match_context_create(nullptr));
        const std::unique_ptr<pcre2_jit_stack, StackFree> stack(
            pcre2_jit_stack_create(32 * 1024, kJitStackBytesMax, nullptr));
        if (!data || !context || !stack) return;
        pcre2_set_match_limit(context.get(), kMatchLimit);
        pcre2_set_depth_limit(context.get(), kDepthLimit);
        pcre2_set_heap_limit(context.get(), kHeapLimitKib);
        pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
        size_t pos = 0;
        while (pos < text.size()) {
            const int found =
                pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                            pos, PCRE2_NO_UTF_CHECK, data.get(), context.get());
            if (found < 0) return;
            const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
            const size_t begin = ends[0];
            const size_t end = ends[1];
            if (end > begin && begin >= pos) {
                out.push_back({begin, end});
                pos = end;
            } else {
                if (begin >= text.size()) return;
                pos = std::max(begin, pos);
                pos += decode_utf8(text, pos).length;
            }
        }
    }

  private:
    std::unique_ptr<pcre2_code, CodeFree> code_;
};

}  // namespace

Expected<std::shared_ptr<const SplitScanner>> pcre_scanner(const std::string& pattern) {
    if (pattern.size() > kPatternBytesMax) {
        return fail(ErrorCode::kUnsupported, "tokenizer: split pattern is longer than 16 KiB");
    }
    int error = 0;
    PCRE2_SIZE offset = 0;
    const std::string spelled = spell_out_space(pattern);
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
    if (code == nullptr) {
        std::array<PCRE2_UCHAR, 256> message{};
        pcre2_get_error_message(error, message.data(), message.size());
        return fail(ErrorCode::kUnsupported,
                    "tokenizer: split pattern does not compile: " +
                        std::string(reinterpret_cast<const char*>(message.data())) + ": " +
                        pattern.substr(0, 256));
    }
    // Without JIT (a hardened kernel may forbid it) the interpreter matches, slower but the same.
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return std::make_shared<PcreScanner>(code);
}

}  // namespace baton::text
