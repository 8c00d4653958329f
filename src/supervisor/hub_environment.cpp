#include "hub_environment.hpp"

#include <cstdlib>

namespace baton::supervisor {
namespace {

void set_unless_set(const char* name, const std::string& value) {
    if (!value.empty()) ::setenv(name, value.c_str(), 0);
}

}  // namespace

void export_hub_settings(const config::SupervisorSettings& s) {
    set_unless_set("HF_ENDPOINT", s.hub_endpoint);
    set_unless_set("HF_TOKEN", s.hub_token);
    set_unless_set("HF_HUB_CACHE", s.hub_cache_dir);
    set_unless_set("BATON_HUB_CA_FILE", s.hub_ca_file);
    set_unless_set("BATON_DOWNLOAD_HUB", s.download_hub);
    set_unless_set("BATON_CACHE_DIR", s.cache_dir);
    if (s.hub_offline) set_unless_set("HF_HUB_OFFLINE", "1");
}

}  // namespace baton::supervisor
