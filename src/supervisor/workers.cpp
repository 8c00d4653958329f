#include "workers.hpp"

#include <ctime>

#include "baton/base/host_of.hpp"
#include "baton/base/log.hpp"

namespace baton::supervisor {
namespace {

/// Addresses of workers that are gone which are remembered.
constexpr size_t kGoneMax = 256;

bool is_unspecified(const std::string& address) { return address.starts_with("0.0.0.0:") || address.starts_with("[::]:"); }
bool is_loopback(const std::string& address) { return address.starts_with("127.") || address.starts_with("[::1]:"); }
/// Whether its link came from here: what is loopback there is loopback here.
bool is_on_this_machine(const Workers::Worker& w) { return w.link->remote() == "unix" || is_loopback(w.link->remote()); }

}  // namespace

void Workers::connected(std::shared_ptr<net::Connection> link) {
    // The address is known with WorkerReady, the first message. The handlers do not own their link: it lives while it is
    // read from, and must not outlive the process's other parts because it owns itself.
    auto address = std::make_shared<std::string>();
    const std::weak_ptr<net::Connection> weak = link;
    link->start({[this, address, weak](net::Connection::Received r) {
                     const auto own = weak.lock();
                     if (!own) return;
                     const auto* ready = std::get_if<wire::WorkerReady>(&r.message);
                     if (ready == nullptr) {
                         if (!address->empty()) on_message(*address, r.message);
                         return;
                     }
                     if (is_unspecified(ready->address)) {
                         log::warn("worker.refused", {{"address", ready->address}, {"remote", own->remote()}});
                         own->send(wire::Refused{static_cast<uint8_t>(ErrorCode::kInvalidArgument),
                                                 ready->address + " is no address that others can reach; start the worker with --advertise-address"});
                         return own->close();
                     }
                     if (address->empty()) *address = ready->address;
                     if (*address == ready->address) registered(*ready, own);
                 },
                 [this, address, weak](const Error& e) {
                     const auto it = workers_.find(*address);
                     if (it != workers_.end() && it->second.link == weak.lock()) lost(*address, e.message);
                 }});
}

void Workers::registered(const wire::WorkerReady& ready, const std::shared_ptr<net::Connection>& link) {
    Worker& w = workers_[ready.address];
    if (w.link != link) {
        if (w.link) w.link->close();
        w = Worker{};
        w.address = ready.address;
        w.link = link;
        w.registered_unix = std::time(nullptr);
        w.registered_at = w.heard_at = steady_now();
        w.local = link->remote() == "unix";
    }
    w.ready = ready;
    gone_hosts_.erase(ready.address);
    log::info("worker.registered", {{"address", ready.address}, {"host_id", ready.host_id}, {"remote", link->remote()}, {"gpus", ready.gpus.size()}});
    if (is_loopback(ready.address) && !is_on_this_machine(w))
        log::warn("worker.address_unusable", {{"address", ready.address}, {"advice", "other hosts cannot reach it: no KV from its prefill replicas; start it with --advertise-address"}});
    events_.registered(ready.address);
}

void Workers::lost(const std::string& address, const std::string& reason) {
    if (closing_) log::info("worker.left", {{"address", address}});
    else log::warn("worker.lost", {{"address", address}, {"reason", reason}});
    const Worker gone = std::move(workers_.at(address));
    workers_.erase(address);
    remember(address, gone.ready.host_id);
    events_.lost(address);
    // A host that went down without a word may be back before its silence is noticed.
    std::set<std::string> back;
    for (const auto& [other, w] : workers_)
        if (w.registered_at > gone.heard_at && replaces(address, other)) back.insert(other);
    for (const std::string& other : back) events_.registered(other);
}

void Workers::remember(const std::string& address, const std::string& host_id) {
    if (workers_.contains(address)) return;
    if (gone_hosts_.size() >= kGoneMax) gone_hosts_.erase(gone_hosts_.begin());
    gone_hosts_[address] = host_id;
}

std::string Workers::host_id_of(const std::string& address) const {
    if (const Worker* w = find(address)) return w->ready.host_id;
    const auto it = gone_hosts_.find(address);
    return it == gone_hosts_.end() ? "" : it->second;
}

Expected<void> Workers::check_transfer(const std::vector<config::ReplicaPlacement>& placements) const {
    for (const config::ReplicaPlacement& p : placements) {
        const Worker* source = p.role == Role::kPrefill ? find(p.worker_ip) : nullptr;
        if (source == nullptr || !is_loopback(source->address)) continue;
        for (const config::ReplicaPlacement& d : placements) {
            const Worker* target = d.role == Role::kDecode ? find(d.worker_ip) : nullptr;
            if (target == nullptr || target->ready.host_id == source->ready.host_id) continue;
            // Hosts that are told apart by their settings alone share the loopback interface.
            if (is_on_this_machine(*source) && is_on_this_machine(*target)) continue;
            return fail(ErrorCode::kInvalidArgument,
                        "no KV can be transferred from worker " + source->address + " to worker " + target->address +
                            ": a loopback address means another host there; start the first with --advertise-address and an address that other hosts can reach",
                        "replica_config");
        }
    }
    return {};
}

bool Workers::on_this_host(const std::string& address) const {
    const Worker* w = find(address);
    return w != nullptr && (w->local || w->ready.host_id == net::default_host_id());
}

bool Workers::replaces(const std::string& gone, const std::string& address) const {
    const Worker* now = find(address);
    if (now == nullptr || find(gone) != nullptr) return false;
    if (now->local && host_of(gone) == host_of(address)) return true;  // there is one local worker
    return of_one_host(gone, host_id_of(gone), address, now->ready.host_id);
}

std::map<std::string, std::string> Workers::now_at(const std::set<std::string>& addresses, bool share) const {
    std::map<std::string, std::string> out;
    std::set<std::string> taken;
    for (const std::string& a : addresses) {
        if (find(a) == nullptr) continue;
        out[a] = a;
        taken.insert(a);
    }
    for (const bool again : {false, true}) {
        for (const std::string& a : addresses) {
            if (out.contains(a)) continue;
            for (const auto& [address, w] : workers_) {
                if ((!w.local && !(again && share) && taken.contains(address)) || !replaces(a, address)) continue;
                out[a] = address;
                taken.insert(address);
                break;
            }
        }
    }
    return out;
}

void Workers::on_message(const std::string& address, const wire::Message& message) {
    const auto it = workers_.find(address);
    if (it == workers_.end()) return;
    it->second.heard_at = steady_now();
    if (const auto* m = std::get_if<wire::SpawnResult>(&message)) {
        if (m->error.empty()) it->second.running[{m->model_uid, m->target.replica}] = {m->target.epoch, m->pid};
        events_.spawned(*m);
    } else if (const auto* x = std::get_if<wire::ReplicaExited>(&message)) {
        const auto process = it->second.running.find({x->model_uid, x->target.replica});
        if (process != it->second.running.end() && process->second.epoch == x->target.epoch) it->second.running.erase(process);
        events_.exited(*x);
    } else if (const auto* s = std::get_if<wire::WorkerStats>(&message)) {
        it->second.stats = *s;
        events_.stats(address, *s);
    } else {
        events_.other(address, message);
    }
}

const Workers::Worker* Workers::find(const std::string& address) const {
    const auto it = workers_.find(address);
    return it == workers_.end() ? nullptr : &it->second;
}

std::vector<config::WorkerView> Workers::views() const {
    std::vector<config::WorkerView> out;
    for (const auto& [address, w] : workers_) {
        config::WorkerView view;
        view.address = address;
        view.local = w.local;
        for (const wire::Gpu& gpu : w.ready.gpus) view.gpus.push_back(gpu.index);
        view.gpu_error = w.ready.gpu_error;
        out.push_back(std::move(view));
    }
    return out;
}

bool Workers::send(const std::string& address, const wire::Message& message) {
    const auto it = workers_.find(address);
    if (it == workers_.end()) return false;
    it->second.link->send(message);
    return true;
}

bool of_one_host(const std::string& address, const std::string& host_id, const std::string& other_address, const std::string& other_host_id) {
    if (!host_id.empty() && host_id == other_host_id) return true;
    return !is_loopback(address) && host_of(address) == host_of(other_address);
}

GpuLoad gpu_load(const Workers::Worker& worker, const wire::Gpu& gpu) {
    for (const wire::GpuUse& use : worker.stats.gpus)
        if (use.index == gpu.index) return {use.memory_used, use.utilization};
    return {};
}

void Workers::close_all() {
    for (auto& [address, w] : workers_) w.link->close();
}

}  // namespace baton::supervisor
