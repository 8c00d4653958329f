#include "baton/grammar/matcher.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "grammar/automaton.hpp"

namespace baton::grammar {
namespace {

constexpr size_t kBytesMax = 48u << 20;        ///< of what a runner remembers
// Work is counted in stacks looked at, 0.1 to 1 µs each. A constraint may use what it likes at first, then what its masks earn:
// whoever sends a hostile one holds the engine up for a moment in all, not for one each token.
constexpr int64_t kWorkMax = 1'500'000;        ///< at once, and in store
constexpr int64_t kWorkEarned = 10'000;        ///< by each mask
constexpr uint64_t kNodesAsOne = 64;           ///< tree nodes that are as much work as a stack
constexpr size_t kFewIds = 512;                ///< masks with so few tokens are kept as their ids
constexpr size_t kLongOneByOne = 4'000;        ///< so many long plain tokens are tried one by one
constexpr uint32_t kLevelsWidthMax = 64;       ///< configurations after the same number of plain characters

constexpr const char* kTooAmbiguous = "the constraint is too ambiguous to be followed";

struct Span8 {
    uint8_t low, high;
};
/// UTF-8 beyond ASCII: first byte, second byte, and how many follow.
struct Form {
    Span8 first, second;
    uint32_t more;
};
constexpr std::array<Form, 8> kForms{{{{0xC2, 0xDF}, {0x80, 0xBF}, 0},
                                      {{0xE0, 0xE0}, {0xA0, 0xBF}, 1},
                                      {{0xE1, 0xEC}, {0x80, 0xBF}, 1},
                                      {{0xED, 0xED}, {0x80, 0x9F}, 1},
                                      {{0xEE, 0xEF}, {0x80, 0xBF}, 1},
                                      {{0xF0, 0xF0}, {0x90, 0xBF}, 2},
                                      {{0xF1, 0xF3}, {0x80, 0xBF}, 2},
                                      {{0xF4, 0xF4}, {0x80, 0x8F}, 2}}};
constexpr std::array<Span8, 3> kAscii{{{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7E}}};

}  // namespace

struct Runner::Impl {
    Impl(Program program, std::shared_ptr<const Vocabulary> vocabulary_in)
        : vocabulary(std::move(vocabulary_in)), automaton(std::move(program), vocabulary->token_bytes_max()) {
        scratch.assign(vocabulary->words(), 0);
    }

    /// A mask as words, or as few ids.
    struct Mask {
        std::vector<uint32_t> words;
        std::vector<TokenId> ids;
    };

    Expected<std::span<const uint32_t>> mask_of(ConfigId config);
    Expected<Mask> make(ConfigId config);
    void walk(const Vocabulary::Tree& tree, ConfigId from, std::vector<uint32_t>& words);
    void add_plain(ConfigId from, std::vector<uint32_t>& words);
    [[nodiscard]] uint32_t plain_depth(ConfigId from, bool& ends_there);
    bool step_all(std::vector<ConfigId>& from, std::span<const Span8> spans, std::vector<ConfigId>& to, bool& any);
    [[nodiscard]] uint64_t work() const { return automaton.work() + nodes / kNodesAsOne; }
    [[nodiscard]] bool over_budget() const { return automaton.overflow() || work() > work_end; }
    /// False where there is nothing left to work with.
    [[nodiscard]] bool settle(int64_t earned) {
        credit = std::min(credit + earned, kWorkMax) - static_cast<int64_t>(work() - settled);
        settled = work();
        return credit > 0 && !automaton.overflow();
    }
    void make_room(ConfigId& keep);

    std::shared_ptr<const Vocabulary> vocabulary;
    Automaton automaton;
    std::unordered_map<ConfigId, Mask> masks;
    size_t mask_bytes = 0;
    uint64_t era = 1;
    uint64_t work_end = UINT64_MAX;
    int64_t credit = kWorkMax;
    uint64_t settled = 0, nodes = 0;
    std::vector<uint32_t> scratch;
    std::vector<TokenId> scratch_ids;  ///< bits set in `scratch`, if it came from ids
    std::vector<ConfigId> path;
    Figures figures;
};

/// Starts over where too much is remembered.
void Runner::Impl::make_room(ConfigId& keep) {
    if (mask_bytes + automaton.bytes() <= kBytesMax) return;
    masks.clear();
    mask_bytes = 0;
    keep = automaton.forget(keep);
    ++era;
    ++figures.forgets;
}

Expected<std::span<const uint32_t>> Runner::Impl::mask_of(ConfigId config) {
    if (!settle(kWorkEarned)) return fail(ErrorCode::kInvalidArgument, kTooAmbiguous);
    const ConfigId key = automaton.canonical(config);
    auto it = masks.find(key);
    if (it == masks.end()) {
        BATON_TRY_ASSIGN(Mask made, make(key));
        mask_bytes += made.words.size() * 4 + made.ids.size() * sizeof(TokenId) + 64;
        it = masks.emplace(key, std::move(made)).first;
        ++figures.masks_found;
    } else {
        ++figures.masks_reused;
    }
    if (!it->second.words.empty()) return std::span<const uint32_t>(it->second.words);
    for (const TokenId id : scratch_ids) scratch[static_cast<size_t>(id) / 32] = 0;
    scratch_ids = it->second.ids;
    for (const TokenId id : scratch_ids) scratch[static_cast<size_t>(id) / 32] |= 1u << (static_cast<uint32_t>(id) % 32);
    return std::span<const uint32_t>(scratch);
}

Expected<Runner::Impl::Mask> Runner::Impl::make(ConfigId config) {
    work_end = work() + static_cast<uint64_t>(credit);
    Mask mask;
    mask.words.assign(vocabulary->words(), 0);
    walk(vocabulary->rest(), config, mask.words);
    if (!over_budget()) add_plain(config, mask.words);
    const bool over = over_budget();
    if (!settle(0) || over) return fail(ErrorCode::kInvalidArgument, kTooAmbiguous);
    size_t count = 0;
    for (const uint32_t w : mask.words) count += static_cast<size_t>(std::popcount(w));
    if (count > kFewIds) return mask;
    for (size_t i = 0; i < mask.words.size(); ++i)
        for (uint32_t w = mask.words[i]; w != 0; w &= w - 1)
            mask.ids.push_back(static_cast<TokenId>(i * 32 + static_cast<size_t>(std::countr_zero(w))));
    mask.words = {};
    return mask;
}

/// Sets the bits of the tree's tokens that may follow.
void Runner::Impl::walk(const Vocabulary::Tree& tree, ConfigId from, std::vector<uint32_t>& words) {
    path.resize(tree.depth_max + 1);
    path[0] = from;
    const auto n = static_cast<uint32_t>(tree.nodes.size());
    for (uint32_t i = 0; i < n;) {
        const Vocabulary::Tree::Node& node = tree.nodes[i];
        const ConfigId to = automaton.next(path[node.depth], node.byte);
        if (to == kDead) {
            i = node.end;
            continue;
        }
        path[node.depth + 1u] = to;
        for (uint32_t k = 0; k < node.count; ++k) {
            const auto id = static_cast<uint32_t>(tree.ids[node.tokens + k]);
            words[id / 32] |= 1u << (id % 32);
        }
        ++i;
        ++nodes;
        if ((nodes & 0xFF) == 0 && over_budget()) return;
    }
}

/// Where each byte of `spans` leads from all of `from`; false where one is dead. `any`: one is live.
bool Runner::Impl::step_all(std::vector<ConfigId>& from, std::span<const Span8> spans, std::vector<ConfigId>& to, bool& any) {
    bool all = true;
    const ProgramData& p = automaton.program();
    for (const ConfigId c : from) {
        for (const Span8 span : spans) {
            for (uint32_t b = span.low; b <= span.high;) {
                const ConfigId next = automaton.next(c, static_cast<uint8_t>(b));
                if (next == kDead) all = false;
                else {
                    any = true;
                    if (std::ranges::find(to, next) == to.end()) to.push_back(next);
                    if (to.size() > kLevelsWidthMax) return false;
                }
                const uint8_t cls = p.class_of[b];  // the classes do not cross the ends of these spans
                while (b <= span.high && p.class_of[b] == cls) ++b;
            }
        }
    }
    return all;
}

/// The number of plain characters of which any may follow one another from here; UINT32_MAX: any number. `ends_there`: no
/// plain text at all is longer.
uint32_t Runner::Impl::plain_depth(ConfigId from, bool& ends_there) {
    std::vector<ConfigId> level{from}, known{from};
    for (uint32_t depth = 0; depth < vocabulary->plain_chars_max(); ++depth) {
        std::vector<ConfigId> after;
        bool any = false;
        bool all = step_all(level, kAscii, after, any);
        for (const Form& form : kForms) {
            std::vector<ConfigId> at = level;
            const auto step = [&](Span8 span) {
                std::vector<ConfigId> to;
                bool live = false;
                all = step_all(at, std::span(&span, 1), to, live) && all;
                at = std::move(to);
            };
            if (!all && any) break;
            step(form.first);
            step(form.second);
            for (uint32_t i = 0; i < form.more; ++i) step({0x80, 0xBF});
            any = any || !at.empty();
            for (const ConfigId c : at)
                if (std::ranges::find(after, c) == after.end()) after.push_back(c);
        }
        if (!all || after.size() > kLevelsWidthMax || over_budget()) {
            ends_there = !any;
            return depth;
        }
        std::erase_if(after, [&](ConfigId c) { return std::ranges::find(known, c) != known.end(); });
        if (after.empty()) return UINT32_MAX;
        known.insert(known.end(), after.begin(), after.end());
        level = std::move(after);
    }
    return UINT32_MAX;
}

/// Plain tokens: those that are short enough to be allowed whatever they say, and the others by their bytes.
void Runner::Impl::add_plain(ConfigId from, std::vector<uint32_t>& words) {
    bool ends_there = false;
    const uint32_t depth = plain_depth(from, ends_there);
    if (over_budget()) return;
    if (depth == 0) {
        if (!ends_there) walk(vocabulary->plain(), from, words);
        return;
    }
    const auto all = vocabulary->plain_mask(depth);
    for (size_t i = 0; i < words.size(); ++i) words[i] |= all[i];
    if (ends_there || depth >= vocabulary->plain_chars_max()) return;
    const auto longer = vocabulary->longer_than(depth);
    if (longer.size() > kLongOneByOne) return walk(vocabulary->plain(), from, words);
    for (const TokenId id : longer) {
        if (automaton.next(from, vocabulary->bytes_of(id)) == kDead) continue;
        words[static_cast<size_t>(id) / 32] |= 1u << (static_cast<uint32_t>(id) % 32);
        if (over_budget()) return;
    }
}

Runner::Runner(Program program, std::shared_ptr<const Vocabulary> vocabulary)
    : impl_(std::make_unique<Impl>(std::move(program), std::move(vocabulary))) {}
Runner::~Runner() = default;
Runner::Runner(Runner&&) noexcept = default;
Runner& Runner::operator=(Runner&&) noexcept = default;

void Runner::warm() {
    const ConfigId start = impl_->automaton.start();
    if (start != kDead) (void)impl_->mask_of(start);
}

size_t Runner::bytes() const { return impl_->mask_bytes + impl_->automaton.bytes() + impl_->scratch.size() * 4; }
Runner::Figures Runner::figures() const { return impl_->figures; }

Matcher::Matcher(Runner& runner)
    : runner_(&runner), config_(runner.impl_->automaton.start()), era_(runner.impl_->era) {}

Expected<void> Matcher::follow(std::span<const uint8_t> bytes) {
    if (failed_ || config_ == kDead) return {};
    Automaton& automaton = runner_->impl_->automaton;
    config_ = bytes.empty() ? kDead : automaton.next(config_, bytes);
    failed_ = config_ == kDead;
    if (automaton.overflow()) return fail(ErrorCode::kInvalidArgument, kTooAmbiguous);
    return {};
}

/// Takes all tokens again where the runner has forgotten the configuration.
Expected<void> Matcher::refresh() {
    Runner::Impl& r = *runner_->impl_;
    if (era_ == r.era) return {};
    config_ = r.automaton.start();
    failed_ = false;
    for (const TokenId token : taken_) {
        r.make_room(config_);
        BATON_TRY(follow(r.vocabulary->bytes_of(token)));
    }
    era_ = r.era;
    return {};
}

Expected<void> Matcher::accept(TokenId token) {
    BATON_TRY(refresh());
    taken_.push_back(token);
    return follow(runner_->impl_->vocabulary->bytes_of(token));
}

bool Matcher::may_end() {
    if (failed_ || !refresh()) return true;
    return config_ == kDead || runner_->impl_->automaton.accepts(config_);
}

bool Matcher::must_end() {
    if (failed_ || !refresh()) return true;
    return config_ == kDead || !runner_->impl_->automaton.goes_on(config_);
}

Expected<std::span<const uint32_t>> Matcher::mask() {
    BATON_TRY(refresh());
    Runner::Impl& r = *runner_->impl_;
    r.make_room(config_);
    era_ = r.era;
    if (failed_ || config_ == kDead) {
        std::ranges::fill(r.scratch, 0u);
        r.scratch_ids.clear();
        return std::span<const uint32_t>(r.scratch);
    }
    return r.mask_of(config_);
}

}  // namespace baton::grammar
