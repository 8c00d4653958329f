#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "baton/model/model.hpp"
#include "baton/openai/chat_context.hpp"
#include "baton/openai/request.hpp"
#include "baton/registry/registry.hpp"

namespace baton::supervisor {

/// What the text threads need of a running model.
struct ServedModel {
    std::string uid;
    model::ModelInfo info;
    openai::TemplateInfo templates;
    openai::ModelLimits limits;
    registry::Style style;  ///< of the registration; its template and stop tokens are in `info` already
    std::string fingerprint;
};

/// The models that a request may name, for threads other than the control thread. Any thread.
class ModelDirectory {
  public:
    void put(std::shared_ptr<const ServedModel> model) {
        const std::lock_guard lock(mutex_);
        loading_.erase(model->uid);
        models_[model->uid] = std::move(model);
    }
    void set_loading(const std::string& uid) {
        const std::lock_guard lock(mutex_);
        loading_[uid] = true;
    }
    void remove(const std::string& uid) {
        const std::lock_guard lock(mutex_);
        models_.erase(uid);
        loading_.erase(uid);
    }
    [[nodiscard]] std::shared_ptr<const ServedModel> find(const std::string& uid) const {
        const std::lock_guard lock(mutex_);
        const auto it = models_.find(uid);
        return it == models_.end() ? nullptr : it->second;
    }
    [[nodiscard]] bool loading(const std::string& uid) const {
        const std::lock_guard lock(mutex_);
        return loading_.count(uid) != 0;
    }
    [[nodiscard]] std::vector<std::string> uids() const {
        const std::lock_guard lock(mutex_);
        std::vector<std::string> out;
        for (const auto& [uid, m] : models_) out.push_back(uid);
        return out;
    }

  private:
    mutable std::mutex mutex_;
    std::map<std::string, std::shared_ptr<const ServedModel>> models_;
    std::map<std::string, bool> loading_;
};

}  // namespace baton::supervisor
