#include "cli/doctor_checks.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>

#include "baton/base/fd.hpp"
#include "baton/config/auth_file.hpp"
#include "baton/config/launch.hpp"
#include "baton/http/tls.hpp"
#include "baton/hub/hub.hpp"
#include "baton/model/model.hpp"
#include "baton/worker/host_facts.hpp"
#include "cli/user_files.hpp"

namespace baton::cli {
namespace {

using State = Finding::State;

constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr rlim_t kOpenFilesWanted = 65'536;  // limits::kConnectionsMax of clients, links, descriptors of KV pools
constexpr uint64_t kSharedMemoryWanted = 1ull << 30;
constexpr double kDiskWantedGib = 5;

std::string gib(double bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f GiB", bytes / kGib);
    return text;
}

/// The value behind `key` in /proc/cpuinfo; "" without it.
std::string of_processor(const std::string& key) {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with(key)) continue;
        const size_t colon = line.find(':');
        if (colon == std::string::npos) continue;
        const size_t begin = line.find_first_not_of(" \t", colon + 1);
        return begin == std::string::npos ? "" : line.substr(begin);
    }
    return "";
}

/// Who may listen there; errno text where nobody may.
std::string cannot_bind(const std::string& host, uint16_t port) {
    addrinfo hints{};
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0) return ::gai_strerror(error);
    std::string why;
    const UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // as the server does
    if (::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(socket.get(), 1) != 0) why = std::strerror(errno);
    ::freeaddrinfo(found);
    return why;
}

std::set<std::string> own_addresses() {
    std::set<std::string> all;
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return all;
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
        char text[INET6_ADDRSTRLEN] = "";
        if (i->ifa_addr == nullptr) continue;
        if (i->ifa_addr->sa_family == AF_INET) ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, text, sizeof text);
        else if (i->ifa_addr->sa_family == AF_INET6) ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr, text, sizeof text);
        if (*text != '\0') all.insert(text);
    }
    ::freeifaddrs(list);
    return all;
}

/// The nearest folder above `path` that exists.
std::filesystem::path existing(std::filesystem::path path) {
    std::error_code ignored;
    while (!std::filesystem::exists(path, ignored) && path.has_parent_path() && path != path.parent_path()) path = path.parent_path();
    return path;
}

/// Whether a folder can be made there: rights alone do not say it (read-only and special file systems, root). errno says why not.
bool takes_folders(const std::filesystem::path& at) {
    std::string name = (at / ".baton-doctor-XXXXXX").string();
    return ::mkdtemp(name.data()) != nullptr && ::rmdir(name.c_str()) == 0;
}

Finding folder(const std::string& what, const std::string& path, const char* option) {
    const auto at = existing(path);
    if (!takes_folders(at))
        return {State::kBad, what, path + ": not writable here (" + at.string() + ": " + std::strerror(errno) + ")", std::string("make it writable, or choose another with ") + option};
    struct statvfs disk{};
    if (::statvfs(at.c_str(), &disk) != 0) return {State::kGood, what, path, ""};
    const double free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
    const std::string found = path + ", " + gib(free) + " free";
    if (free < kDiskWantedGib * kGib) return {State::kWarning, what, found, std::string("models may not fit: make room, or choose another with ") + option};
    return {State::kGood, what, found, ""};
}

}  // namespace

std::string_view to_string(Finding::State state) {
    switch (state) {
    case State::kGood: return "good";
    case State::kNote: return "note";
    case State::kWarning: return "warning";
    case State::kBad: break;
    }
    return "bad";
}

std::vector<Finding> check_processor() {
    std::string name = of_processor("model name");
    const std::string flags = " " + of_processor("flags") + " ";
    const auto has = [&](const char* flag) { return flags.find(std::string(" ") + flag + " ") != std::string::npos; };
    const char* kernels = has("amx_int8") ? "AMX" : has("avx512_vnni") ? "AVX-512 VNNI" : has("avx512bw") ? "AVX-512" : has("avx2") ? "AVX2" : "portable code";
    Finding f{State::kGood, "processor", (name.empty() ? "unknown" : name) + ", " + std::to_string(worker::cpu_count()) + " threads, computes with " + kernels, ""};
    if (!has("avx2")) f.state = State::kWarning, f.advice = "the CPU engine is slow without AVX2: use a GPU, or another processor";
    return {f};
}

std::vector<Finding> check_memory() {
    std::vector<Finding> out;
    const worker::Memory host = worker::read_memory();  // or the control group's
    const auto total = static_cast<double>(host.total), available = static_cast<double>(host.total - host.used);
    out.push_back({State::kGood, "memory", gib(available) + " of " + gib(total) + " available", ""});
    if (available < 2 * kGib) out.back().state = State::kWarning, out.back().advice = "a model's weights, its KV cache and the snapshot store share this: end other programs, or bound --kv_cache_bytes and --snapshot-bytes";
    const UniqueFd memory(static_cast<int>(::memfd_create("baton-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
    if (!memory || ::ftruncate(memory.get(), 1 << 20) != 0)
        out.push_back({State::kBad, "shared memory files", std::string("memfd_create: ") + std::strerror(errno), "replicas share KV and weights by them: allow memfd_create in the container's or the unit's filter"});
    struct statvfs shm{};
    if (::statvfs("/dev/shm", &shm) == 0) {
        const auto size = static_cast<uint64_t>(shm.f_blocks) * shm.f_frsize;
        out.push_back({State::kGood, "/dev/shm", gib(static_cast<double>(size)), ""});
        if (size < kSharedMemoryWanted) out.back().state = State::kWarning, out.back().advice = "NCCL uses it between GPUs: give the container --shm-size=1g or more";
    }
    return out;
}

std::vector<Finding> check_limits() {
    rlimit files{}, locked{};
    std::vector<Finding> out;
    ::getrlimit(RLIMIT_NOFILE, &files);
    const auto words = [](rlim_t n) { return n == RLIM_INFINITY ? std::string("no bound") : std::to_string(n); };
    out.push_back({State::kGood, "open files", words(files.rlim_max) + " at most", ""});
    if (files.rlim_max < kOpenFilesWanted) out.back().state = State::kWarning, out.back().advice = "each client takes one: raise LimitNOFILE (systemd), ulimit -Hn or --ulimit nofile to " + std::to_string(kOpenFilesWanted);
    ::getrlimit(RLIMIT_MEMLOCK, &locked);
    out.push_back({State::kGood, "locked memory", locked.rlim_max == RLIM_INFINITY ? "no bound" : gib(static_cast<double>(locked.rlim_max)) + " at most", ""});
    std::ifstream pids("/sys/fs/cgroup/pids.max");
    if (std::string most; std::getline(pids, most) && most != "max" && std::strtol(most.c_str(), nullptr, 10) < 512)
        out.push_back({State::kWarning, "processes", most + " at most", "replicas are processes with several threads each: raise TasksMax (systemd) or --pids-limit"});
    return out;
}

std::vector<Finding> check_folders(const config::SupervisorSettings& settings) {
    return {folder("state folder", settings.state_dir, "--state-dir"), folder("cache folder", settings.cache_dir, "--cache-dir")};
}

std::vector<Finding> check_addresses(const config::SupervisorSettings& settings) {
    std::vector<Finding> out;
    const std::string at = settings.host + ":" + std::to_string(settings.port);
    const std::string why = cannot_bind(settings.host, settings.port);
    out.push_back({why.empty() ? State::kGood : State::kBad, "HTTP port", why.empty() ? at + " is free" : at + ": " + why,
                   why.empty() ? "" : "is baton running already (`baton status`)? Else choose another with --port or --host"});
    const bool local = settings.host == "127.0.0.1" || settings.host == "localhost" || settings.host == "::1";
    if (!local && settings.api_keys.empty() && settings.inference_api_keys.empty() && settings.auth_file.empty())
        out.push_back({State::kWarning, "keys", "none, and " + settings.host + " is open to the network", "set api_keys or auth_file (docs/API.md)"});
    if (!settings.advertise_address.empty() && !own_addresses().contains(settings.advertise_address))
        out.push_back({State::kWarning, "advertised address", settings.advertise_address + " is not an address of this host", "other hosts must reach it: correct it unless something forwards it here"});
    if (settings.link_address.empty()) {
        out.push_back({State::kNote, "other hosts", "not served: no link_address", ""});
    } else {
        const size_t colon = settings.link_address.rfind(':');
        const std::string bad = cannot_bind(settings.link_address.substr(0, colon), static_cast<uint16_t>(std::strtoul(settings.link_address.c_str() + colon + 1, nullptr, 10)));
        out.push_back({bad.empty() ? State::kGood : State::kBad, "link port", settings.link_address + (bad.empty() ? " is free" : ": " + bad), bad.empty() ? "" : "choose another link_address"});
    }
    return out;
}

std::vector<Finding> check_certificate(const config::SupervisorSettings& settings) {
    if (settings.tls_certificate.empty()) return {};
    const auto facts = http::inspect_certificate(settings.tls_certificate, settings.tls_key);
    if (!facts) return {{State::kBad, "TLS", facts.error().message, "the server will not start: both must be PEM files that its user can read, and belong together"}};
    std::string names;
    for (const std::string& name : facts->names) names += (names.empty() ? " for " : ", ") + name;
    const std::string why = facts->warning(std::time(nullptr));
    if (!why.empty()) return {{State::kWarning, "TLS", facts->subject + names + ": " + why, "clients refuse it: renew it, and send SIGHUP to a running server"}};
    if (names.empty()) return {{State::kWarning, "TLS", facts->subject + ": names no host", "clients refuse it: it needs its host names as subjectAltName"}};
    return {{State::kGood, "TLS", facts->subject + names + ", " + std::to_string((facts->not_after - std::time(nullptr)) / 86'400) + " days left", ""}};
}

/// What the file says of the hub, where the environment does not; that is judged with it.
std::vector<Finding> check_hub(const config::SupervisorSettings& settings) {
    std::vector<Finding> out;
    const auto hub = hub::settings_from([&](const char* name) -> const char* {
        const std::string_view variable = name;
        if (std::getenv(name) != nullptr || settings.hub_endpoint.empty()) return nullptr;
        return variable == "HF_ENDPOINT" ? settings.hub_endpoint.c_str() : nullptr;
    });
    if (!hub) out.push_back({State::kBad, "hub_endpoint", settings.hub_endpoint + ": it must look like https://host[:port][/path]", "no model can be downloaded: correct it"});
    const char* set = std::getenv("BATON_HUB_CA_FILE");
    const bool from_environment = set != nullptr && *set != '\0';
    const std::string path = from_environment ? set : settings.hub_ca_file;
    if (!path.empty() && ::access(path.c_str(), R_OK) != 0)
        out.push_back({State::kBad, from_environment ? "BATON_HUB_CA_FILE" : "hub_ca_file", path + " cannot be read", "no model can be downloaded: it must be a PEM file of certificates"});
    return out;
}

std::vector<Finding> check_auth_file(const config::SupervisorSettings& settings) {
    if (settings.auth_file.empty()) return {};
    const auto bad = [](const std::string& why) { return std::vector<Finding>{{State::kBad, "auth_file", why, "the server will not start: docs/API.md shows the format"}}; };
    const auto text = read_text_file(settings.auth_file);
    if (!text) return bad(text.error().message);
    const auto file = config::parse_auth_file(*text);
    if (!file) return bad(settings.auth_file + ": " + file.error().message);
    return {{State::kGood, "auth_file", settings.auth_file + ": " + std::to_string(file->users.size()) + " users", ""}};
}

std::vector<Finding> check_deployments(const config::SupervisorSettings& settings) {
    std::vector<Finding> out;
    for (size_t i = 0; i < settings.deployments.size(); ++i) {
        const auto launch = config::parse_launch(settings.deployments[i], settings.local_worker);
        if (!launch || launch->model_path.empty()) continue;
        const auto path = model::resolve_model_path(launch->model_path, settings.model_root);
        std::vector<Finding> found = path ? check_model(*path) : std::vector<Finding>{{State::kBad, "", launch->model_path + ": " + path.error().message, "correct model_path"}};
        found.front().what = "deployments[" + std::to_string(i) + "]";
        out.push_back(std::move(found.front()));
    }
    return out;
}

std::vector<Finding> check_files(const config::SupervisorSettings& settings) {
    std::vector<Finding> out;
    if (!settings.model_root.empty()) {
        std::error_code ignored;
        const bool there = std::filesystem::is_directory(settings.model_root, ignored) && ::access(settings.model_root.c_str(), R_OK | X_OK) == 0;
        out.push_back({there ? State::kGood : State::kBad, "model_root", settings.model_root + (there ? "" : ": no folder that can be read"), there ? "" : "correct it"});
    }
    for (const auto& check : {check_certificate, check_hub, check_auth_file, check_deployments})
        for (Finding& f : check(settings)) out.push_back(std::move(f));
    return out;
}

std::vector<Finding> check_model(const std::string& path) {
    if (path.empty()) return {};
    const auto model = model::inspect_model(path);
    if (!model) return {{State::kBad, "model", path + ": " + model.error().message, "docs/MODELS.md says which models run"}};
    return {{State::kGood, "model", path + ": " + model->family + ", " + model->quantization + ", context " + std::to_string(model->context_length), ""}};
}

}  // namespace baton::cli
