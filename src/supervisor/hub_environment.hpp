#pragma once

#include "baton/config/settings.hpp"

namespace baton::supervisor {

/// Puts the settings of hubs and caches where downloads look for them: the environment of this process and of the local
/// worker. What is set there already stays. Call before there are threads.
void export_hub_settings(const config::SupervisorSettings& settings);

}  // namespace baton::supervisor
