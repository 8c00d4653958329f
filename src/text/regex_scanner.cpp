#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <ctime>

#include "text/split_scanner.hpp"
#include "text/unicode.hpp"

namespace baton::text {
namespace {

constexpr size_t kPatternBytesMax = 16 * 1024;
constexpr uint32_t kMatchLimit = 1'000'000;
constexpr uint32_t kDepthLimit = 10'000;
constexpr uint32_t kHeapLimitKib = 16 * 1024;
constexpr size_t kJitStackBytesMax = 1024 * 1024;
constexpr uint32_t kCallsBetweenClocks = 64;
constexpr std::clock_t kTimeS = 1;

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

/// Matches at one place after the other, so that what a hostile pattern costs is counted; the last
/// part of a text for which the time is up is left in one piece.
class PcreScanner final : public SplitScanner {
  public:
    PcreScanner(pcre2_code* code, bool jit)
        : code_(code), context_(pcre2_match_context_create(nullptr)), jit_(jit) {
        if (context_ != nullptr) set_limits(context_.get());
    }

    void find_all(std::string_view text, std::vector<Span>& out) const override {
        const std::unique_ptr<pcre2_match_data, DataFree> data(
            pcre2_match_data_create_from_pattern(code_.get(), nullptr));
        if (data == nullptr || context_ == nullptr) return;
        size_t pos = 0;
        std::clock_t deadline = 0;
        for (uint32_t calls = 1; pos < text.size(); ++calls) {
            if (calls % kCallsBetweenClocks == 0) {
                const std::clock_t now = std::clock();
                if (deadline == 0) deadline = now + kTimeS * CLOCKS_PER_SEC;
                if (now > deadline) return;
            }
            const int found = match(text, pos, data.get());
            if (found == PCRE2_ERROR_NOMATCH) {
                pos += decode_utf8(text, pos).length;
                continue;
            }
            if (found < 0) return;  // a limit
            const size_t end = pcre2_get_ovector_pointer(data.get())[1];
            if (end > pos) {
                out.push_back({pos, end});
                pos = end;
            } else {
                pos += decode_utf8(text, pos).length;
            }
        }
    }

  private:
    static void set_limits(pcre2_match_context* context) {
        pcre2_set_match_limit(context, kMatchLimit);
        pcre2_set_depth_limit(context, kDepthLimit);
        pcre2_set_heap_limit(context, kHeapLimitKib);
    }

    int match(std::string_view text, size_t pos, pcre2_match_data* data) const {
        const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
        if (!jit_) {
            return pcre2_match(code_.get(), subject, text.size(), pos, PCRE2_NO_UTF_CHECK, data,
                               context_.get());
        }
        const int found =
            pcre2_jit_match(code_.get(), subject, text.size(), pos, 0, data, context_.get());
        if (found != PCRE2_ERROR_JIT_STACKLIMIT) return found;
        // Rare: what it needs by itself is more than the 32 KiB of the machine's stack.
        const std::unique_ptr<pcre2_match_context, ContextFree> context(
            pcre2_match_context_create(nullptr));
        const std::unique_ptr<pcre2_jit_stack, StackFree> stack(
            pcre2_jit_stack_create(32 * 1024, kJitStackBytesMax, nullptr));
        if (context == nullptr || stack == nullptr) return found;
        set_limits(context.get());
        pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
        return pcre2_jit_match(code_.get(), subject, text.size(), pos, 0, data, context.get());
    }

    std::unique_ptr<pcre2_code, CodeFree> code_;
    std::unique_ptr<pcre2_match_context, ContextFree> context_;
    bool jit_;
};

}  // namespace

Expected<std::shared_ptr<const SplitScanner>> pcre_scanner(const std::string& pattern) {
    if (pattern.size() > kPatternBytesMax) {
        return fail(ErrorCode::kUnsupported, "tokenizer: split pattern is longer than 16 KiB");
    }
    int error = 0;
    PCRE2_SIZE offset = 0;
    const std::string spelled = spell_out_space(pattern);
    pcre2_code* code = pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
        PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
        &offset, nullptr);
    if (code == nullptr) {
        std::array<PCRE2_UCHAR, 256> message{};
        pcre2_get_error_message(error, message.data(), message.size());
        return fail(ErrorCode::kUnsupported,
                    "tokenizer: split pattern does not compile: " +
                        std::string(reinterpret_cast<const char*>(message.data())) + ": " +
                        pattern.substr(0, 256));
    }
    // Without JIT (a hardened kernel may forbid it) the interpreter matches, slower but the same.
    const bool jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
    return std::make_shared<PcreScanner>(code, jit);
}

}  // namespace baton::text
