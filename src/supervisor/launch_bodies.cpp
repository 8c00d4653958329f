#include "launch_bodies.hpp"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

namespace baton::supervisor {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kConfigKeys[] = {"replica_config", "replica-config"};

std::string text_of(const Json& body) { return body.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// The list of a body's replica_config, however it was sent; an empty one where there was none.
Json config_list(const Json& body) {
    for (const char* key : kConfigKeys) {
        const auto it = body.find(key);
        if (it == body.end() || it->is_null()) continue;
        Json list = it->is_string() ? Json::parse(it->get<std::string>(), nullptr, false) : *it;
        if (list.is_array()) return list;
    }
    return Json::array();
}

void set_config_list(Json& body, Json list) {
    body.erase("replica-config");
    body["replica_config"] = std::move(list);
}

/// `body` after its replicas have become `count`. `change` edits its replica_config where it has one.
template <class Change>
std::string body_with(const std::string& raw, size_t count, const Change& change) {
    Json body = Json::parse(raw, nullptr, false);
    if (!body.is_object()) return raw;
    if (Json list = config_list(body); !list.empty()) {
        change(list);
        set_config_list(body, std::move(list));
    }
    body["replica"] = count;
    body.erase("gpu_idx");  // one list for all replicas: it fits another number no more
    return text_of(body);
}

/// Whether it ends with a port.
bool is_address(const std::string& text) {
    const size_t colon = text.rfind(':');
    return colon != std::string::npos && colon + 1 < text.size() && text.find_first_not_of("0123456789", colon + 1) == std::string::npos;
}

/// Replaces each name in a list of them that is parted by commas.
std::string each_of(const std::string& text, const std::function<std::string(const std::string&)>& rename) {
    std::string out;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        std::string one = text.substr(begin, end - begin);
        one.erase(0, std::min(one.find_first_not_of(' '), one.size()));
        one.erase(one.find_last_not_of(' ') + 1);
        out += (begin == 0 ? "" : ",") + rename(one);
        begin = end + 1;
    }
    return out;
}

/// Calls `rename` with every address of a worker in a parsed body, and puts what it returns there.
void rename_workers(Json& body, const std::function<std::string(const std::string&)>& rename) {
    const auto in_place = [&](Json& v) {
        if (v.is_string()) v = each_of(v.get<std::string>(), rename);
    };
    if (const auto it = body.find("worker_ip"); it != body.end()) {
        in_place(*it);
        if (it->is_array())
            for (Json& one : *it) in_place(one);
    }
    Json list = config_list(body);
    if (list.empty()) return;
    for (Json& entry : list) {
        if (!entry.is_object() || !entry.contains("devices") || !entry["devices"].is_array()) continue;
        for (Json& device : entry["devices"])
            if (device.is_object() && device.contains("worker_ip")) in_place(device["worker_ip"]);
    }
    set_config_list(body, std::move(list));
}

Json entry_of(const config::ReplicaPlacement& p) {
    Json device = {{"worker_ip", p.worker_ip}};
    if (p.gpu_idx.empty()) device["n_gpu"] = 0;
    else device["gpu_idx"] = p.gpu_idx;
    return {{"replica_uid", p.replica_uid}, {"devices", Json::array({device})}};
}

}  // namespace

std::string with_replica(const std::string& body, size_t count, const config::ReplicaPlacement& added) {
    return body_with(body, count, [&](Json& list) { list.push_back(entry_of(added)); });
}

std::string without_replica(const std::string& body, size_t count, size_t index) {
    return body_with(body, count, [&](Json& list) {
        if (index < list.size()) list.erase(index);
    });
}

std::set<std::string> workers_named(const std::string& body) {
    std::set<std::string> named;
    Json json = Json::parse(body, nullptr, false);
    if (!json.is_object()) return named;
    rename_workers(json, [&](const std::string& worker) {
        if (is_address(worker)) named.insert(worker);
        return worker;
    });
    return named;
}

std::string readdressed(const std::string& body, const std::map<std::string, std::string>& now) {
    Json json = Json::parse(body, nullptr, false);
    bool changed = false;
    if (!json.is_object()) return body;
    rename_workers(json, [&](const std::string& worker) {
        const auto it = now.find(worker);
        if (it == now.end() || it->second == worker) return worker;
        changed = true;
        return it->second;
    });
    return changed ? text_of(json) : body;
}

}  // namespace baton::supervisor
