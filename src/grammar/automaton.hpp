#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "baton/grammar/grammar.hpp"
#include "grammar/program.hpp"

namespace baton::grammar {

using ConfigId = uint32_t;
inline constexpr ConfigId kDead = UINT32_MAX;     ///< no text goes on from here
inline constexpr ConfigId kUnknown = kDead - 1;

/// Runs a program: a configuration is the set of all stacks that the bytes so far may have led to. Configurations are
/// numbered and their moves remembered, so that a byte seen before in the same place costs one look-up. One thread.
class Automaton {
  public:
    /// `token_bytes_max`: the longest token; counts farther from their bounds than that look alike to `canonical`.
    Automaton(Program program, uint32_t token_bytes_max);

    [[nodiscard]] ConfigId start();
    /// Where byte `b` leads from a live configuration, or kDead.
    [[nodiscard]] ConfigId next(ConfigId from, uint8_t b) {
        const ConfigId to = rows_[static_cast<size_t>(from) * classes_ + class_of_[b]];
        return to == kUnknown ? move(from, class_of_[b]) : to;
    }
    [[nodiscard]] ConfigId next(ConfigId from, std::span<const uint8_t> bytes);
    /// The text may end here.
    [[nodiscard]] bool accepts(ConfigId at) const { return configs_[at].accepts; }
    /// Some byte may follow.
    [[nodiscard]] bool goes_on(ConfigId at) const { return configs_[at].nodes > 0; }
    /// A configuration from which the same tokens may follow; many have the same.
    [[nodiscard]] ConfigId canonical(ConfigId of);

    /// Forgets all but `keep`, whose new number is returned (kDead: none is kept). All numbers given out before are void.
    ConfigId forget(ConfigId keep);
    [[nodiscard]] size_t bytes() const;
    [[nodiscard]] const ProgramData& program() const { return program_.data(); }

    /// Work done so far, in stacks looked at. More than a few thousand for one byte sets `overflow`: the constraint is too
    /// ambiguous to be followed; its configurations are void then.
    [[nodiscard]] uint64_t work() const { return work_; }
    [[nodiscard]] bool overflow() const { return overflow_; }
    [[nodiscard]] size_t configs() const { return configs_.size(); }

  private:
    static constexpr uint32_t kNoNode = UINT32_MAX;
    /// A state on top of the states to return to.
    struct Node {
        StateId state = 0;
        uint32_t count = 0;   ///< of a counting state: repetitions begun
        uint32_t parent = kNoNode;
        uint32_t canonical = kUnknownNode;
        uint32_t depth = 0;   ///< frames below
    };
    static constexpr uint32_t kUnknownNode = UINT32_MAX - 1;
    struct Config {
        uint32_t at = 0, nodes = 0;  ///< in nodes_of_
        ConfigId canonical = kUnknown;
        bool accepts = false;
    };
    struct Item {
        StateId state = 0;
        uint32_t count = 0;
        uint32_t parent = 0;
        uint32_t fresh = 0;  ///< frames on top that were pushed since the last byte
        friend bool operator==(const Item&, const Item&) = default;
    };
    struct Key {
        uint64_t a = 0, b = 0;
        friend bool operator==(const Key&, const Key&) = default;
    };
    struct KeyHash {
        size_t operator()(const Key& k) const;
    };

    ConfigId move(ConfigId from, uint8_t byte_class);
    void clear();
    void reach(const Item& item);
    void follow(const Item& item);
    void close();
    ConfigId intern_config(bool accepts);
    uint32_t intern(StateId state, uint32_t count, uint32_t parent);
    [[nodiscard]] uint32_t canonical_count(StateId state, uint32_t count) const;
    uint32_t canonical_node(uint32_t node);

    Program program_;
    uint32_t token_bytes_max_;
    std::array<uint8_t, 256> class_of_;
    size_t classes_;
    std::vector<Node> nodes_;
    std::unordered_map<Key, uint32_t, KeyHash> node_ids_;
    std::vector<Config> configs_;
    std::vector<uint32_t> nodes_of_;
    std::vector<ConfigId> rows_;  ///< [configs, classes]
    std::unordered_multimap<uint64_t, ConfigId> config_ids_;
    ConfigId start_ = kUnknown;
    // Of the configuration being made.
    std::vector<Item> todo_, seen_;
    std::vector<uint32_t> seen_table_;  ///< open addressing: index into seen_ + 1, 0 free
    std::vector<uint32_t> found_;
    bool accepts_ = false;
    uint64_t work_ = 0;
    bool overflow_ = false;
};

}  // namespace baton::grammar
