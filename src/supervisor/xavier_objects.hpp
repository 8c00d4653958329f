#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "baton/wire/messages.hpp"

namespace baton::supervisor {

/// How many of each kind live, for baton_xavier_objects: all must be back to zero when the deployments have ended.
struct ObjectCounts {
    int router = 0, coordinator = 0, collective_manager = 0, block_tracker = 0;
};

/// Raises one count for as long as it lives.
class Counted {
  public:
    explicit Counted(int& count) : count_(&count) { ++*count_; }
    ~Counted() { --*count_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

  private:
    int* count_;
};

/// Hands out the identities that links are made with: which process (epoch) stands in which slot, and where it listens.
class Coordinator {
  public:
    explicit Coordinator(ObjectCounts& counts) : counted_(counts.coordinator) {}
    void set(const wire::Peer& peer) { peers_[peer.target.replica] = peer; }
    void remove(ReplicaId id) { peers_.erase(id); }
    [[nodiscard]] wire::Peers peers() const {
        wire::Peers out;
        for (const auto& [id, p] : peers_) out.peers.push_back(p);
        return out;
    }

  private:
    Counted counted_;
    std::map<ReplicaId, wire::Peer> peers_;
};

/// Knows every prefill-decode link of the deployment, as its two ends report it.
class CollectiveManager {
  public:
    explicit CollectiveManager(ObjectCounts& counts) : counted_(counts.collective_manager) {}
    struct Link {
        bool up = false;
        std::string mover;
    };
    /// Order of the two ends does not matter. True when the state changed.
    bool set(ReplicaId a, ReplicaId b, bool up, const std::string& mover) {
        Link& link = links_[key(a, b)];
        const bool changed = link.up != up;
        link = {up, mover};
        return changed;
    }
    [[nodiscard]] bool up(ReplicaId a, ReplicaId b) const {
        const auto it = links_.find(key(a, b));
        return it != links_.end() && it->second.up;
    }
    /// Pairs of a replica that were up and are down now.
    std::vector<ReplicaId> drop(ReplicaId id) {
        std::vector<ReplicaId> lost;
        for (auto& [pair, link] : links_) {
            if (!link.up || (pair.first != id && pair.second != id)) continue;
            link.up = false;
            lost.push_back(pair.first == id ? pair.second : pair.first);
        }
        return lost;
    }

  private:
    static std::pair<ReplicaId, ReplicaId> key(ReplicaId a, ReplicaId b) { return a < b ? std::pair{a, b} : std::pair{b, a}; }
    Counted counted_;
    std::map<std::pair<ReplicaId, ReplicaId>, Link> links_;
};

/// Knows which host holds how many finished snapshots of the deployment's model.
class BlockTracker {
  public:
    explicit BlockTracker(ObjectCounts& counts) : counted_(counts.block_tracker) {}
    void set(const std::string& worker, const wire::WorkerStats& stats) { hosts_[worker] = stats; }
    void remove(const std::string& worker) { hosts_.erase(worker); }
    [[nodiscard]] const std::map<std::string, wire::WorkerStats>& hosts() const { return hosts_; }

  private:
    Counted counted_;
    std::map<std::string, wire::WorkerStats> hosts_;
};

}  // namespace baton::supervisor
