"""A Voila page's kernel ends two minutes after its tab is closed; a notebook's waits longer."""

from typing import Any

from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

PAGE_IDLE_S = 120


class KernelManager(AsyncMappingKernelManager):
    async def start_kernel(self, **given: Any) -> str:
        """Voila in a Jupyter server starts its kernels here, with its name in their environment.

        A page that was opened without a notebook's cookie cannot end its kernel itself.
        """
        kernel_id: str = await super().start_kernel(**given)
        if (given.get("env") or {}).get("SERVER_SOFTWARE", "").startswith("voila/"):
            metadata = self.get_kernel(kernel_id).kernel_spec.metadata
            metadata["cull_idle_timeout"] = min(PAGE_IDLE_S, self.cull_idle_timeout)
        return kernel_id


c = get_config()  # type: ignore[name-defined]  # noqa: F821
c.ServerApp.kernel_manager_class = KernelManager
