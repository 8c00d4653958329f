#include "grammar/program.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace baton::grammar {
namespace {

constexpr uint32_t kUnrolledCost = 64;  ///< repetitions up to so many states are written out
constexpr uint32_t kNoHeight = UINT32_MAX;
constexpr size_t kEdgesOfStateMax = 60'000;

/// One edge before states are put in order.
struct Edge {
    StateId from = 0;
    bool on_byte = false;
    uint8_t low = 0, high = 0;
    Move move;              ///< `to` for both kinds
    RuleId rule = 0;        ///< kCall, kCount
};

/// From expressions to states and edges.
class Emitter {
  public:
    Emitter(const ExprPool& pool, const Limits& limits) : pool_(pool), limits_(limits) {}

    /// Emits every rule that `root` uses. False where there are too many states.
    bool run(RuleId root) {
        (void)rule_of(pool_.body(root), pool_.name(root), root);
        for (size_t r = 0; r < rules_.size() && !full_; ++r) emit(rules_[r].body, rules_[r].entry, rules_[r].end);
        return !full_;
    }

    struct Rule {
        ExprId body = 0;
        StateId entry = 0, end = 0;
        std::string name;
    };
    std::vector<Edge> edges;
    [[nodiscard]] StateId states() const { return next_; }
    [[nodiscard]] const std::vector<Rule>& rules() const { return rules_; }

  private:
    StateId fresh() {
        if (next_ >= limits_.states) full_ = true;
        return full_ ? 0 : next_++;
    }

    /// The rule that has this body; `named`: a rule of the pool, or kUnbounded for the body of a repetition.
    RuleId rule_of(ExprId body, const std::string& name, RuleId named) {
        const auto [it, added] = known_.try_emplace({named, named == kUnbounded ? body : 0}, static_cast<RuleId>(rules_.size()));
        if (added) {
            const StateId entry = fresh(), end = fresh();
            rules_.push_back({body, entry, end, name});
        }
        return it->second;
    }

    void on_bytes(StateId from, uint8_t low, uint8_t high, StateId to) {
        Edge& e = edges.emplace_back();
        e.from = from;
        e.on_byte = true;
        e.low = low;
        e.high = high;
        e.move.to = to;
        if (edges.size() > 8 * size_t{limits_.states}) full_ = true;
    }
    void jump(StateId from, StateId to) { call(from, Move::Kind::kJump, 0, to, 0, 0); }
    void call(StateId from, Move::Kind kind, RuleId rule, StateId to, uint32_t least, uint32_t most) {
        Edge& e = edges.emplace_back();
        e.from = from;
        e.rule = rule;
        e.move = {kind, to, 0, least, most};
        if (edges.size() > 8 * size_t{limits_.states}) full_ = true;
    }

    void emit(ExprId id, StateId from, StateId to) {
        if (full_) return;
        const Expr& e = pool_.at(id);
        switch (e.op) {
            case Op::kNothing: return;
            case Op::kEmpty: return jump(from, to);
            case Op::kBytes: return emit_bytes(pool_.text(e), from, to);
            case Op::kChars: return emit_chars(pool_.set(e), from, to);
            case Op::kSeq: return emit_seq(pool_.parts(e), from, to);
            case Op::kAlt:
                for (const ExprId part : pool_.parts(e)) emit(part, from, to);
                return;
            case Op::kRepeat: return emit_repeat(e, from, to);
            case Op::kRule: return call(from, Move::Kind::kCall, rule_of(pool_.body(e.a), pool_.name(e.a), e.a), to, 0, 0);
        }
    }

    void emit_bytes(std::string_view text, StateId from, StateId to) {
        for (size_t i = 0; i < text.size(); ++i) {
            const StateId next = i + 1 == text.size() ? to : fresh();
            on_bytes(from, static_cast<uint8_t>(text[i]), static_cast<uint8_t>(text[i]), next);
            from = next;
        }
    }

    /// Characters whose last bytes have equal ranges share the states of those.
    void emit_chars(const CharSet& set, StateId from, StateId to) {
        std::map<std::string, StateId> suffixes;
        for (const ByteRanges& r : utf8_ranges(set)) {
            StateId next = to;
            std::string suffix;
            for (uint32_t i = r.size; i-- > 1;) {
                suffix += static_cast<char>(r.low[i]);
                suffix += static_cast<char>(r.high[i]);
                const auto [it, added] = suffixes.try_emplace(suffix, kNoState);
                if (added) {
                    it->second = fresh();
                    on_bytes(it->second, r.low[i], r.high[i], next);
                }
                next = it->second;
            }
            on_bytes(from, r.low[0], r.high[0], next);
        }
    }

    void emit_seq(std::span<const ExprId> parts, StateId from, StateId to) {
        for (size_t i = 0; i < parts.size(); ++i) {
            const StateId next = i + 1 == parts.size() ? to : fresh();
            emit(parts[i], from, next);
            from = next;
        }
    }

    void emit_repeat(const Expr& e, StateId from, StateId to) {
        const uint32_t cost = pool_.at(e.a).cost + 1;
        if (e.most == kUnbounded && e.n <= 1) {
            const StateId loop = fresh(), again = fresh();
            jump(from, loop);
            emit(e.a, loop, again);
            jump(again, loop);
            return jump(e.n == 0 ? loop : again, to);
        }
        const uint64_t copies = e.most == kUnbounded ? e.n : e.most;
        if (copies * cost > kUnrolledCost && copies > 1) {
            const StateId loop = fresh();
            jump(from, loop);
            return call(loop, Move::Kind::kCount, rule_of(e.a, "repetition", kUnbounded), to, e.n, e.most);
        }
        for (uint32_t i = 0; i < copies && !full_; ++i) {
            const StateId next = fresh();
            if (i >= e.n) jump(from, to);
            emit(e.a, from, next);
            from = next;
        }
        if (e.most == kUnbounded) {
            const StateId loop = fresh(), again = fresh();
            jump(from, loop);
            emit(e.a, loop, again);
            jump(again, loop);
            from = loop;
        }
        jump(from, to);
    }

    const ExprPool& pool_;
    const Limits& limits_;
    bool full_ = false;
    StateId next_ = 0;
    std::vector<Rule> rules_;
    std::map<std::pair<RuleId, ExprId>, RuleId> known_;
};

/// What is to be known of the edges before they become a program.
class Analysis {
  public:
    Analysis(const Emitter& emitter, uint32_t frames_max) : emitter_(emitter), frames_max_(frames_max) {
        const size_t n = emitter.states();
        out_.assign(n + 1, 0);
        for (const Edge& e : emitter.edges) ++out_[e.from + 1];
        for (size_t i = 0; i < n; ++i) out_[i + 1] += out_[i];
        order_.resize(emitter.edges.size());
        std::vector<uint32_t> at(out_.begin(), out_.end() - 1);
        for (uint32_t i = 0; i < emitter.edges.size(); ++i) order_[at[emitter.edges[i].from]++] = i;
        find_nullable();
        find_tails();
        find_heights();
    }

    [[nodiscard]] const std::vector<uint32_t>& height() const { return height_; }
    [[nodiscard]] bool tail(StateId s) const { return tail_[s] != 0; }
    [[nodiscard]] bool nullable(RuleId rule) const { return nullable_[rule] != 0; }
    [[nodiscard]] std::span<const uint32_t> edges_of(StateId s) const {
        return std::span(order_).subspan(out_[s], out_[s + 1] - out_[s]);
    }

    /// The rule that begins with itself, or null.
    [[nodiscard]] const std::string* left_recursive() const;

  private:
    [[nodiscard]] bool passes(const Edge& e) const {
        if (e.on_byte) return false;
        if (e.move.kind == Move::Kind::kJump) return true;
        return nullable_[e.rule] != 0 || (e.move.kind == Move::Kind::kCount && e.move.least == 0);
    }

    /// Which rules match "". A rule found nullable makes the edges that call it pass; those who wait for it are looked at again.
    void find_nullable() {
        const size_t rules = emitter_.rules().size();
        nullable_.assign(rules, 0);
        std::vector<std::vector<std::pair<RuleId, StateId>>> waiting(rules);
        // One flood a rule, over jumps; states reached of several rules are disjoint, since rules share none.
        std::vector<uint8_t> seen(emitter_.states(), 0);
        std::vector<std::pair<RuleId, StateId>> todo;
        for (RuleId r = 0; r < rules; ++r) todo.emplace_back(r, emitter_.rules()[r].entry);
        while (!todo.empty()) {
            const auto [rule, state] = todo.back();
            todo.pop_back();
            if (std::exchange(seen[state], uint8_t{1}) != 0) continue;
            if (state == emitter_.rules()[rule].end && nullable_[rule] == 0) {
                nullable_[rule] = 1;
                todo.insert(todo.end(), waiting[rule].begin(), waiting[rule].end());
            }
            for (const uint32_t i : edges_of(state)) {
                const Edge& e = emitter_.edges[i];
                if (passes(e)) todo.emplace_back(rule, e.move.to);
                else if (!e.on_byte) waiting[e.rule].emplace_back(rule, e.move.to);
            }
        }
    }

    /// Where only jumps lead on, straight to the rule's end, a call needs no frame.
    void find_tails() {
        tail_.assign(emitter_.states(), 0);
        for (const auto& rule : emitter_.rules()) tail_[rule.end] = edges_of(rule.end).empty() ? 1 : 0;
        for (size_t pass = 0; pass < 4; ++pass) {  // longer chains are rare, and only cost a frame
            for (StateId s = 0; s < emitter_.states(); ++s) {
                const auto edges = edges_of(s);
                if (edges.size() != 1) continue;
                const Edge& e = emitter_.edges[edges.front()];
                if (!e.on_byte && e.move.kind == Move::Kind::kJump && tail_[e.move.to] != 0) tail_[s] = 1;
            }
        }
    }

    /// Least heights, by rising height (Knuth's generalisation of Dijkstra's algorithm).
    void find_heights() {
        const size_t n = emitter_.states();
        height_.assign(n, kNoHeight);
        std::vector<uint32_t> in(n + 1, 0), by_to(emitter_.edges.size());
        for (const Edge& e : emitter_.edges) ++in[e.move.to + 1];
        for (size_t i = 0; i < n; ++i) in[i + 1] += in[i];
        std::vector<uint32_t> at(in.begin(), in.end() - 1);
        for (uint32_t i = 0; i < emitter_.edges.size(); ++i) by_to[at[emitter_.edges[i].move.to]++] = i;
        std::vector<std::vector<uint32_t>> callers(emitter_.rules().size());
        for (uint32_t i = 0; i < emitter_.edges.size(); ++i) {
            const Edge& e = emitter_.edges[i];
            if (!e.on_byte && e.move.kind != Move::Kind::kJump) callers[e.rule].push_back(i);
        }
        std::vector<RuleId> rule_of_entry(n, kUnbounded);
        for (RuleId r = 0; r < emitter_.rules().size(); ++r) rule_of_entry[emitter_.rules()[r].entry] = r;
        std::vector<std::vector<StateId>> levels(frames_max_ + 1);
        for (const auto& rule : emitter_.rules()) levels[0].push_back(rule.end);
        const auto consider = [&](const Edge& e) {
            const uint32_t h = through(e);
            if (h <= frames_max_ && h < height_[e.from]) levels[h].push_back(e.from);
        };
        for (uint32_t level = 0; level <= frames_max_; ++level) {
            while (!levels[level].empty()) {
                const StateId s = levels[level].back();
                levels[level].pop_back();
                if (height_[s] <= level) continue;
                height_[s] = level;
                for (uint32_t i = in[s]; i < in[s + 1]; ++i) consider(emitter_.edges[by_to[i]]);
                if (rule_of_entry[s] == kUnbounded) continue;
                for (const uint32_t i : callers[rule_of_entry[s]]) consider(emitter_.edges[i]);
            }
        }
    }

    /// The height of an edge's start by way of this edge.
    [[nodiscard]] uint32_t through(const Edge& e) const {
        const uint32_t rest = height_[e.move.to];
        if (e.on_byte || e.move.kind == Move::Kind::kJump) return rest;
        if (e.move.kind == Move::Kind::kCount && (e.move.least == 0 || nullable_[e.rule] != 0)) return rest;
        const uint32_t inner = height_[emitter_.rules()[e.rule].entry];
        if (inner == kNoHeight || rest == kNoHeight) return kNoHeight;
        const bool frame = e.move.kind == Move::Kind::kCount || tail_[e.move.to] == 0;
        return std::max(rest, inner + (frame ? 1 : 0));
    }

    const Emitter& emitter_;
    uint32_t frames_max_;
    std::vector<uint32_t> out_, order_;  ///< edges by their start
    std::vector<uint8_t> nullable_;      ///< of each rule
    std::vector<uint8_t> tail_;          ///< of each state
    std::vector<uint32_t> height_;       ///< of each state; kNoHeight: its rule's end cannot be reached
};

const std::string* Analysis::left_recursive() const {
    const auto& rules = emitter_.rules();
    std::vector<std::vector<RuleId>> begins(rules.size());  // rules that this one may begin with
    std::vector<uint8_t> seen(emitter_.states(), 0);
    for (RuleId r = 0; r < rules.size(); ++r) {
        std::vector<StateId> todo{rules[r].entry};
        while (!todo.empty()) {
            const StateId s = todo.back();
            todo.pop_back();
            if (std::exchange(seen[s], uint8_t{1}) != 0) continue;
            for (const uint32_t i : edges_of(s)) {
                const Edge& e = emitter_.edges[i];
                if (!e.on_byte && e.move.kind != Move::Kind::kJump) begins[r].push_back(e.rule);
                if (passes(e)) todo.push_back(e.move.to);
            }
        }
    }
    std::vector<uint8_t> color(rules.size(), 0);
    for (RuleId start = 0; start < rules.size(); ++start) {
        std::vector<std::pair<RuleId, size_t>> path{{start, 0}};
        if (color[start] != 0) continue;
        color[start] = 1;
        while (!path.empty()) {
            auto& [rule, next] = path.back();
            if (next == begins[rule].size()) {
                color[rule] = 2;
                path.pop_back();
                continue;
            }
            const RuleId other = begins[rule][next++];
            if (color[other] == 1) return &rules[other].name;
            if (color[other] == 2) continue;
            color[other] = 1;
            path.emplace_back(other, 0);
        }
    }
    return nullptr;
}

void set_classes(ProgramData& p) {
    std::array<bool, 257> cut{};
    cut[0] = true;
    for (const ByteEdge& e : p.byte_edges) cut[e.low] = cut[size_t{e.high} + 1] = true;
    // Where UTF-8 and plain JSON text change their mind (containment in vocabulary slices looks at whole classes).
    for (const int at : {0x20, 0x22, 0x23, 0x5C, 0x5D, 0x7F, 0x80, 0x90, 0xA0, 0xC0, 0xC2, 0xE0, 0xE1, 0xED, 0xEE, 0xF0, 0xF1, 0xF4, 0xF5})
        cut[static_cast<size_t>(at)] = true;
    for (size_t b = 0; b < 256; ++b) {
        if (cut[b]) p.class_byte.push_back(static_cast<uint8_t>(b));
        p.class_of[b] = static_cast<uint8_t>(p.class_byte.size() - 1);
    }
}

}  // namespace

tl::unexpected<Error> too_large() {
    return fail(ErrorCode::kInvalidArgument, "the constraint is too large or too deeply nested");
}

Expected<Program> make_program(const ExprPool& pool, RuleId root, const Limits& limits) {
    if (pool.full()) return too_large();
    Emitter emitter(pool, limits);
    if (!emitter.run(root)) return too_large();
    const Analysis analysis(emitter, std::min<uint32_t>(limits.frames, UINT8_MAX));
    if (const std::string* rule = analysis.left_recursive())
        return fail(ErrorCode::kInvalidArgument, "rule " + *rule + " begins with itself (left recursion); put the repetition after");
    auto data = std::make_shared<ProgramData>();
    ProgramData& p = *data;
    p.entry = emitter.rules().front().entry;
    p.frames_max = std::min<uint32_t>(limits.frames, UINT8_MAX);
    if (analysis.height()[p.entry] == kNoHeight) return fail(ErrorCode::kInvalidArgument, "no text satisfies the constraint");
    p.states.resize(emitter.states());
    for (const auto& rule : emitter.rules()) p.states[rule.end].final = true;
    for (StateId s = 0; s < p.states.size(); ++s) {
        State& state = p.states[s];
        state.bytes_at = static_cast<uint32_t>(p.byte_edges.size());
        state.moves_at = static_cast<uint32_t>(p.moves.size());
        const uint32_t height = analysis.height()[s];
        if (height == kNoHeight) continue;
        state.height = static_cast<uint8_t>(height);
        state.tail = analysis.tail(s);
        if (analysis.edges_of(s).size() > kEdgesOfStateMax) return too_large();
        for (const uint32_t i : analysis.edges_of(s)) {
            const Edge& e = emitter.edges[i];
            if (analysis.height()[e.move.to] == kNoHeight) continue;
            if (e.on_byte) {
                p.byte_edges.push_back({e.low, e.high, e.move.to});
                continue;
            }
            Move m = e.move;
            if (m.kind != Move::Kind::kJump) {
                m.entry = emitter.rules()[e.rule].entry;
                const bool possible = analysis.height()[m.entry] != kNoHeight;
                if (m.kind == Move::Kind::kCount && analysis.nullable(e.rule)) m.least = 0;
                if (m.kind == Move::Kind::kCall && !possible) continue;
                if (m.kind == Move::Kind::kCount && !possible) {
                    if (m.least > 0) continue;
                    m = {Move::Kind::kJump, m.to, 0, 0, 0};
                }
                state.counts = m.kind == Move::Kind::kCount;
            }
            p.moves.push_back(m);
        }
        state.bytes = static_cast<uint16_t>(p.byte_edges.size() - state.bytes_at);
        state.moves = static_cast<uint16_t>(p.moves.size() - state.moves_at);
    }
    set_classes(p);
    return Program(std::move(data));
}

Program::Program(std::shared_ptr<const ProgramData> data) : data_(std::move(data)) {}

size_t Program::bytes() const {
    return data_->states.size() * sizeof(State) + data_->byte_edges.size() * sizeof(ByteEdge) + data_->moves.size() * sizeof(Move);
}

}  // namespace baton::grammar
