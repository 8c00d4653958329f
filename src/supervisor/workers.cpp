#include "workers.hpp"

#include <ctime>

#include "baton/base/log.hpp"

namespace baton::supervisor {

void Workers::connected(std::shared_ptr<net::Connection> link) {
    // The address is known with WorkerReady, the first message. The handlers do not own their link: it lives while it is
    // read from, and must not outlive the process's other parts because it owns itself.
    auto address = std::make_shared<std::string>();
    const std::weak_ptr<net::Connection> weak = link;
    link->start({[this, address, weak](net::Connection::Received r) {
                     const auto own = weak.lock();
                     if (!own) return;
                     if (const auto* ready = std::get_if<wire::WorkerReady>(&r.message)) {
                         if (address->empty()) {
                             *address = ready->address;
                             Worker& w = workers_[*address];
                             if (w.link && w.link != own) w.link->close();
                             w = Worker{};
                             w.address = *address;
                             w.link = own;
                             w.registered_unix = std::time(nullptr);
                             w.local = own->remote() == "unix";
                         }
                         workers_[*address].ready = *ready;
                         log::info("worker.registered", {{"address", *address}, {"gpus", ready->gpus.size()}});
                         events_.registered(*address);
                         return;
                     }
                     if (!address->empty()) on_message(*address, r.message);
                 },
                 [this, address, weak](const Error& e) {
                     const auto it = workers_.find(*address);
                     if (it == workers_.end() || it->second.link != weak.lock()) return;
                     log::warn("worker.lost", {{"address", *address}, {"reason", e.message}});
                     workers_.erase(it);
                     events_.lost(*address);
                 }});
}

void Workers::on_message(const std::string& address, const wire::Message& message) {
    const auto it = workers_.find(address);
    if (it == workers_.end()) return;
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

GpuLoad gpu_load(const Workers::Worker& worker, const wire::Gpu& gpu) {
    for (const wire::GpuUse& use : worker.stats.gpus)
        if (use.index == gpu.index) return {use.memory_used, use.utilization};
    return {};
}

void Workers::close_all() {
    for (auto& [address, w] : workers_) w.link->close();
}

}  // namespace baton::supervisor
