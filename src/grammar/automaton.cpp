#include "grammar/automaton.hpp"

#include <algorithm>

namespace baton::grammar {
namespace {

constexpr size_t kItemsMax = 8192;  ///< stacks looked at for one byte
constexpr size_t kSeenFew = 24;     ///< so many are searched one by one

uint64_t mix(uint64_t x) {
    x ^= x >> 31;
    x *= 0x9E3779B97F4A7C15ull;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ull;
    return x ^ (x >> 32);
}

}  // namespace

size_t Automaton::KeyHash::operator()(const Key& k) const { return mix(k.a ^ mix(k.b + 1)); }

Automaton::Automaton(Program program, uint32_t token_bytes_max)
    : program_(std::move(program)),
      token_bytes_max_(token_bytes_max),
      class_of_(program_.data().class_of),
      classes_(program_.data().class_byte.size()) {}

ConfigId Automaton::start() {
    if (start_ != kUnknown) return start_;
    clear();
    reach({program_.data().entry, 0, kNoNode, 0});
    close();
    start_ = overflow_ ? kDead : intern_config(accepts_);
    return start_;
}

ConfigId Automaton::next(ConfigId from, std::span<const uint8_t> bytes) {
    for (const uint8_t b : bytes) {
        if (from == kDead) break;
        from = next(from, b);
    }
    return from;
}

void Automaton::clear() {
    todo_.clear();
    if (seen_.size() > kSeenFew) std::ranges::fill(seen_table_, 0u);
    seen_.clear();
    found_.clear();
    accepts_ = false;
}

/// Notes a stack that was reached, once.
void Automaton::reach(const Item& item) {
    const ProgramData& p = program_.data();
    const uint32_t depth = item.parent == kNoNode ? 0 : nodes_[item.parent].depth + 1;
    if (depth + p.states[item.state].height > p.frames_max) return;  // its end could not be reached
    if (seen_.size() < kSeenFew) {
        if (std::ranges::find(seen_, item) != seen_.end()) return;
    } else {
        if (seen_.size() >= kItemsMax) {
            overflow_ = true;
            return;
        }
        if (seen_table_.empty()) seen_table_.assign(4 * kItemsMax, 0);
        const auto place = [&](const Item& i) {
            uint64_t h = mix((uint64_t{i.state} << 32 | i.parent) ^ mix((uint64_t{i.count} << 32 | i.fresh) + 7));
            for (;; ++h) {
                const uint32_t at = seen_table_[h % seen_table_.size()];
                if (at == 0 || seen_[at - 1] == i) return h % seen_table_.size();
            }
        };
        if (seen_.size() == kSeenFew)
            for (uint32_t i = 0; i < seen_.size(); ++i) seen_table_[place(seen_[i])] = i + 1;
        const size_t at = place(item);
        if (seen_table_[at] != 0) return;
        seen_table_[at] = static_cast<uint32_t>(seen_.size() + 1);
    }
    seen_.push_back(item);
    todo_.push_back(item);
}

/// Follows all moves on no byte; what is left are stacks whose top waits for one.
void Automaton::close() {
    while (!todo_.empty() && !overflow_) {
        const Item item = todo_.back();
        todo_.pop_back();
        ++work_;
        follow(item);
    }
}

void Automaton::follow(const Item& item) {
    const ProgramData& p = program_.data();
    const State& s = p.states[item.state];
    if (s.bytes > 0) found_.push_back(intern(item.state, 0, item.parent));
    if (s.final) {
        if (item.parent == kNoNode) {
            accepts_ = true;
        } else {
            const Node to = nodes_[item.parent];
            // A repetition that took no byte is none: else a count could rise for ever.
            if (item.fresh == 0 || !p.states[to.state].counts)
                reach({to.state, to.count, to.parent, item.fresh > 0 ? item.fresh - 1 : 0});
        }
    }
    for (uint32_t i = 0; i < s.moves; ++i) {
        const Move& m = p.moves[s.moves_at + i];
        if (m.kind == Move::Kind::kJump) {
            reach({m.to, 0, item.parent, item.fresh});
        } else if (m.kind == Move::Kind::kCall) {
            if (p.states[m.to].tail) reach({m.entry, 0, item.parent, item.fresh});
            else reach({m.entry, 0, intern(m.to, 0, item.parent), item.fresh + 1});
        } else {
            if (item.count < m.most) {
                const uint32_t count = m.most == kUnbounded ? std::min(item.count + 1, m.least) : item.count + 1;
                reach({m.entry, 0, intern(item.state, count, item.parent), item.fresh + 1});
            }
            if (item.count >= m.least) reach({m.to, 0, item.parent, item.fresh});
        }
    }
}

uint32_t Automaton::intern(StateId state, uint32_t count, uint32_t parent) {
    const auto [it, added] = node_ids_.try_emplace(Key{uint64_t{state} << 32 | parent, count}, static_cast<uint32_t>(nodes_.size()));
    if (added) nodes_.push_back({state, count, parent, kUnknownNode, parent == kNoNode ? 0 : nodes_[parent].depth + 1});
    return it->second;
}

/// The number of the configuration in `found_`.
ConfigId Automaton::intern_config(bool accepts) {
    std::ranges::sort(found_);
    const auto same = std::ranges::unique(found_);
    found_.erase(same.begin(), same.end());
    if (found_.empty() && !accepts) return kDead;
    uint64_t hash = accepts ? 1 : 2;
    for (const uint32_t n : found_) hash = mix(hash ^ n);
    const auto [begin, end] = config_ids_.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
        const Config& c = configs_[it->second];
        const auto nodes = std::span(nodes_of_).subspan(c.at, c.nodes);
        if (c.accepts == accepts && std::ranges::equal(nodes, found_)) return it->second;
    }
    const auto id = static_cast<ConfigId>(configs_.size());
    configs_.push_back({static_cast<uint32_t>(nodes_of_.size()), static_cast<uint32_t>(found_.size()), kUnknown, accepts});
    nodes_of_.insert(nodes_of_.end(), found_.begin(), found_.end());
    rows_.resize(rows_.size() + classes_, found_.empty() ? kDead : kUnknown);
    config_ids_.emplace(hash, id);
    return id;
}

ConfigId Automaton::move(ConfigId from, uint8_t byte_class) {
    if (overflow_) return kDead;
    const ProgramData& p = program_.data();
    const uint8_t b = p.class_byte[byte_class];
    const Config config = configs_[from];
    clear();
    for (uint32_t i = 0; i < config.nodes; ++i) {
        const Node node = nodes_[nodes_of_[config.at + i]];
        const State& s = p.states[node.state];
        work_ += 1 + s.bytes / 8;
        for (uint32_t k = 0; k < s.bytes; ++k) {
            const ByteEdge& e = p.byte_edges[s.bytes_at + k];
            if (b >= e.low && b <= e.high) reach({e.to, 0, node.parent, 0});
        }
    }
    close();
    if (overflow_) return kDead;
    const ConfigId to = intern_config(accepts_);
    rows_[static_cast<size_t>(from) * classes_ + byte_class] = to;
    return to;
}

/// What a count may be replaced by as long as one token is all that follows: a token begins at most as many repetitions as
/// it has bytes.
uint32_t Automaton::canonical_count(StateId state, uint32_t count) const {
    const ProgramData& p = program_.data();
    if (!p.states[state].counts) return 0;
    const Move& m = p.moves[p.states[state].moves_at];
    const uint32_t far = token_bytes_max_ + 1;
    if (count < m.least) return m.least - count > far ? 0 : count;
    if (m.most == kUnbounded) return count;
    return m.most - count > far ? m.least : count;
}

uint32_t Automaton::canonical_node(uint32_t node) {
    std::vector<uint32_t> chain;
    while (node != kNoNode && nodes_[node].canonical == kUnknownNode) {
        chain.push_back(node);
        node = nodes_[node].parent;
    }
    uint32_t parent = node == kNoNode ? kNoNode : nodes_[node].canonical;
    for (size_t i = chain.size(); i-- > 0;) {
        const Node n = nodes_[chain[i]];
        parent = intern(n.state, canonical_count(n.state, n.count), parent);
        nodes_[chain[i]].canonical = parent;
        nodes_[parent].canonical = parent;
    }
    return parent;
}

ConfigId Automaton::canonical(ConfigId of) {
    if (configs_[of].canonical != kUnknown) return configs_[of].canonical;
    const Config config = configs_[of];
    found_.clear();
    for (uint32_t i = 0; i < config.nodes; ++i) found_.push_back(canonical_node(nodes_of_[config.at + i]));
    const ConfigId to = intern_config(config.accepts);
    configs_[of].canonical = to;
    configs_[to].canonical = to;
    return to;
}

ConfigId Automaton::forget(ConfigId keep) {
    /// The kept stacks, top first.
    std::vector<std::vector<std::pair<StateId, uint32_t>>> stacks;
    bool accepts = false;
    if (keep != kDead) {
        const Config config = configs_[keep];
        accepts = config.accepts;
        for (uint32_t i = 0; i < config.nodes; ++i) {
            auto& stack = stacks.emplace_back();
            for (uint32_t n = nodes_of_[config.at + i]; n != kNoNode; n = nodes_[n].parent)
                stack.emplace_back(nodes_[n].state, nodes_[n].count);
        }
    }
    nodes_.clear();
    node_ids_.clear();
    configs_.clear();
    nodes_of_.clear();
    rows_.clear();
    config_ids_.clear();
    start_ = kUnknown;
    if (keep == kDead) return kDead;
    found_.clear();
    for (const auto& stack : stacks) {
        uint32_t node = kNoNode;
        for (size_t i = stack.size(); i-- > 0;) node = intern(stack[i].first, stack[i].second, node);
        found_.push_back(node);
    }
    return intern_config(accepts);
}

size_t Automaton::bytes() const {
    constexpr size_t kMapEntry = 48;
    return nodes_.size() * (sizeof(Node) + kMapEntry) + configs_.size() * (sizeof(Config) + kMapEntry) +
           nodes_of_.size() * sizeof(uint32_t) + rows_.size() * sizeof(ConfigId);
}

}  // namespace baton::grammar
