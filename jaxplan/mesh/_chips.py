"""Rates, links and memory of one chip of each supported kind, from public data sheets.

Rates are dense peaks; the bandwidth of a link is that of one device sending in one direction. Links between GPUs take
the effective figures of NCCL's own topology search (GB/s per NVLink, PCIe and network), which are below the
signalling rate:
https://github.com/NVIDIA/nccl/blob/master/src/graph/topo.h . Latencies are those of NCCL's ring with the LL
protocol:
https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc (`baseLat`, `hwLat`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jaxplan.mesh._efficiency import EFFICIENCIES, Efficiency

# NCCL, topo.h: bytes per second of one NVLink of Pascal, Volta, Ampere, Hopper, Blackwell; PCIe 3.0 x16; 100 Gbit/s
# network.
_NVLINK_P100, _NVLINK_V100, _NVLINK_A100, _NVLINK_H100 = 18.0e9, 20.0e9, 20.0e9, 20.6e9
_NVLINK_B200 = 40.1e9
_PCIE3_X16 = 12.0e9
_PCIE4_X16 = 2 * _PCIE3_X16
_PCIE5_X16 = 2 * _PCIE4_X16
# "PCIe bandwidth" of a TPU host to one chip: https://jax-ml.github.io/scaling-book/tpus/
_TPU_PCIE = 15.0e9
_NET_100G = 12.0e9
# Tofu, section 6.1, of EC2 p2.8xlarge: 21 GB/s between two K80, both directions together.
_PCIE_P2_8XLARGE = 21.0e9 / 2
# NCCL, tuning.cc: seconds per ring step over NVLink, PCIe and the network, and per collective.
_NVLINK_LATENCY, _PCIE_LATENCY, _NET_LATENCY = 0.6e-6, 1.0e-6, 2.7e-6
_NCCL_LAUNCH = 6.6e-6
# What a kernel of few bytes takes in the CUDA graph of a step on an H200: 1 to 2 us
# (benchmarks/records/kernels_h200.tar). Without graphs launches take a few, which run ahead of the device.
_GPU_KERNEL_LAUNCH = 1.5e-6
# Scratch output of a `__cublas$` custom call, read off programs compiled for H100 and A100.
_CUBLAS_WORKSPACE_HOPPER, _CUBLAS_WORKSPACE = 32 << 20, 4 << 20
# JAX preallocates this fraction of a GPU: https://docs.jax.dev/en/latest/gpu_memory_allocation.html
GPU_PREALLOCATED_FRACTION = 0.75
# The TPU compiler offers 15.75 of 16 GiB on v5e (it says so in its out-of-memory message).
TPU_USABLE_FRACTION = 15.75 / 16
# https://jax-ml.github.io/scaling-book/tpus/ : about a microsecond per hop of ICI.
_ICI_LATENCY = 1.0e-6
_TPU_LAUNCH = 1.0e-6
# Same page: a host sends 25 GB/s into the network between slices; its chips share that evenly. The latency is that of a
# round trip in a data centre, order of magnitude.
_DCN_HOST, _DCN_LATENCY = 25.0e9, 20e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How the children of one level talk to each other.

    Attributes:
      bandwidth_bytes_per_second: of one device sending alone at this level, in one direction.
      latency_seconds: one step of a ring.
      shared_bytes_per_second: of all devices below one child sending together (a node's network cards);
        None where each device has its own link.
      ring: a torus dimension (TPU): its bisection does not grow with its size, unlike a switch's.
      wraps: the ring closes, and the bandwidth is that of both directions round it: a part of the ring has half.
    """

    bandwidth_bytes_per_second: float
    latency_seconds: float
    shared_bytes_per_second: float | None = None
    ring: bool = False
    wraps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipSpec:
    """One kind of accelerator.

    Attributes:
      name: as in a topology string.
      multiprocessors: streaming multiprocessors of a GPU, as its compile target has them (``core_count``) or, without
        one, its data sheet; 0 for others.
      flops_per_second: (number format, dense peak) pairs; formats f64 f32 tf32 bf16 f16 f8 int8.
      vector_flops: peak of the vector units in float32; None where that is the dense peak of f32 (GPUs).
      f32_matmul: the format in which JAX multiplies float32 matrices at default precision.
      memory_bytes_per_second: device memory bandwidth.
      memory_bytes: device memory.
      usable_fraction: share of it that a JAX program may fill.
      launch_seconds: floor of one kernel.
      collective_launch_seconds: floor of one collective.
      device_link: between the devices of a node (or along one torus dimension).
      node_link: between nodes, or slices of TPUs; None where there is only one.
      matmul_workspace_bytes: most scratch memory that the compiler hands to the library for one dot.
      fuses_products: the compiler fuses the producers of a dot's operands into the dot and recomputes them at every
        use, instead of passing buffers to a library.
      on_chip_bytes: memory beside the cores in which the compiler keeps the residuals that loops of the forward pass
        stack, as far as it goes, and some short-lived values; 0 where that was not observed.
      torus_rank: dimensions of the ICI torus, 0 for chips behind a switch.
      elementwise_16bit: whether element-wise arithmetic runs in bfloat16 as written; elsewhere the compiler widens
        it to float32, and keeps residuals of it wide.
      aot_platform: platform for compilation without the device ("cuda", "tpu", "cpu"), or None.
      aot_target: name of the target file under `targets/` (cuda only), or None: planned, not audited.
      device_kinds: substrings of `jax.Device.device_kind` by which `detect` knows it.
      host_bytes_per_second: between the memory of the host and one device, in one direction (PCIe, NVLink-C2C); both
        directions run at once.
      efficiency: shares of these figures that programs reach.
      source: where the figures come from.
    """

    name: str
    flops_per_second: tuple[tuple[str, float], ...]
    vector_flops: float | None = None
    f32_matmul: str = "f32"
    multiprocessors: int = 0
    memory_bytes_per_second: float
    memory_bytes: int
    usable_fraction: float
    launch_seconds: float
    collective_launch_seconds: float
    device_link: Link
    node_link: Link | None
    on_chip_bytes: int = 0
    torus_rank: int = 0
    elementwise_16bit: bool = False
    matmul_workspace_bytes: int = 0
    fuses_products: bool = False
    aot_platform: str | None = None
    aot_target: str | None = None
    device_kinds: tuple[str, ...] = ()
    host_bytes_per_second: float = _PCIE3_X16
    efficiency: Efficiency = field(default_factory=Efficiency)
    source: str

    @property
    def is_gpu(self) -> bool:
        """Whether programs are compiled by XLA for GPUs; of those without a target, all."""
        return self.aot_platform in ("cuda", None)

    @property
    def is_tiled(self) -> bool:
        """Whether arrays lie in memory in tiles of 8 x 128 elements."""
        return self.aot_platform == "tpu"

    def peak_flops_per_second(self, dtype: str) -> float:
        """Dense peak in a dtype (`bfloat16` or `bf16`); a format it lacks runs in the next wider one."""
        rates = dict(self.flops_per_second)
        name = _SHORT_DTYPES.get(dtype, dtype)
        while name not in rates and name in _WIDER:
            name = _WIDER[name]
        return rates.get(name, rates["f32"])

    def matmul_flops_per_second(self, dtype: str) -> float:
        """The same for matrix products at JAX's default precision, which runs float32 as `f32_matmul`."""
        name = _SHORT_DTYPES.get(dtype, dtype)
        return self.peak_flops_per_second(self.f32_matmul if name == "f32" else name)

    def vector_flops_per_second(self, dtype: str) -> float:
        """Peak of the vector units: of 64 bits their own where the chip has one, of all others that of float32."""
        if self.vector_flops is not None:
            return self.vector_flops
        return self.peak_flops_per_second("f64" if _SHORT_DTYPES.get(dtype, dtype) == "f64" else "f32")


_SHORT_DTYPES = {
    "float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16", "int8": "int8", "uint8": "int8",
    "float8_e4m3fn": "f8", "float8_e5m2": "f8", "complex64": "f32", "complex128": "f64",
}  # fmt: skip
_WIDER = {"f8": "bf16", "int8": "f16", "bf16": "f32", "f16": "f32", "tf32": "f32"}


def _gpu(
    name: str, rates: dict[str, float], multiprocessors: int, gbytes_per_second: float, memory_bytes: int,
    device_link: Link, node_link: Link, kinds: tuple[str, ...], source: str, target: bool,
) -> ChipSpec:  # fmt: skip
    is_new = any(rates is of for of in (_HOPPER, _BLACKWELL, _GRACE_BLACKWELL))
    return ChipSpec(
        name=name, flops_per_second=tuple((k, v * 1e12) for k, v in rates.items()),
        f32_matmul="tf32" if "tf32" in rates else "f32", multiprocessors=multiprocessors,
        memory_bytes_per_second=gbytes_per_second * 1e9,
        memory_bytes=memory_bytes, usable_fraction=GPU_PREALLOCATED_FRACTION,
        launch_seconds=_GPU_KERNEL_LAUNCH,
        elementwise_16bit=is_new,
        matmul_workspace_bytes=_CUBLAS_WORKSPACE_HOPPER if is_new else _CUBLAS_WORKSPACE,
        collective_launch_seconds=_NCCL_LAUNCH,
        device_link=device_link, node_link=node_link,
        aot_platform="cuda" if target else None, aot_target=name if target else None,
        device_kinds=kinds, source=source,
        host_bytes_per_second=_PCIE5_X16 if is_new else _PCIE4_X16 if rates is _AMPERE else _PCIE3_X16,
    )  # fmt: skip


def _nvlink(num_links: int, each: float) -> Link:
    return Link(bandwidth_bytes_per_second=num_links * each, latency_seconds=_NVLINK_LATENCY)


def _pcie(bandwidth: float) -> Link:
    return Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=_PCIE_LATENCY)


def _network(total: float, per_device: float) -> Link:
    return Link(
        bandwidth_bytes_per_second=per_device, latency_seconds=_NET_LATENCY, shared_bytes_per_second=total
    )


_VMEM_FOR_LOOPS = {"v5e": 80 * 2**20}
"""Of 128 MiB, the least that compiled programs of LSTMs were mostly seen to allot (64 to 112 MiB); v5p and v6e were
not looked at."""


_VECTOR_SHARE = {"v6e": 1 / 64, "v7x": 1 / 64}
"""Vector operations per FLOP of the matrix units: in a core 8 x 128 lanes of four units each (https://
jax-ml.github.io/scaling-book/tpus/) beside four arrays of 128 x 128 multiply-adds, 1/32; two of 256 x 256 in v6e."""


def _tpu(
    name: str, bf16: float, int8: float, bandwidth: float, memory: int, ici: float, rank: int,
    kinds: tuple[str, ...], source: str, per_host: int = 4,
) -> ChipSpec:  # fmt: skip
    return ChipSpec(
        # float32 at full precision takes six bfloat16 passes: https://docs.jax.dev/en/latest/jax.lax.html
        # (Precision)
        name=name, flops_per_second=(("bf16", bf16), ("int8", int8), ("f32", bf16 / 6)), f32_matmul="bf16",
        vector_flops=bf16 * _VECTOR_SHARE.get(name, 1 / 32),
        memory_bytes_per_second=bandwidth, memory_bytes=memory, usable_fraction=TPU_USABLE_FRACTION,
        launch_seconds=_TPU_LAUNCH, collective_launch_seconds=_TPU_LAUNCH,
        device_link=Link(bandwidth_bytes_per_second=ici, latency_seconds=_ICI_LATENCY, ring=True),
        node_link=Link(bandwidth_bytes_per_second=_DCN_HOST / per_host, latency_seconds=_DCN_LATENCY),
        on_chip_bytes=_VMEM_FOR_LOOPS.get(name, 0),
        torus_rank=rank, fuses_products=True, aot_platform="tpu", device_kinds=kinds,
        host_bytes_per_second=_TPU_PCIE, source=source,
    )  # fmt: skip


_HOPPER = {"f64": 33.5, "f32": 66.9, "tf32": 494.7, "bf16": 989.4, "f16": 989.4, "f8": 1978.9, "int8": 1978.9}
_BLACKWELL = {"f64": 37.0, "f32": 74.4, "tf32": 1125.0, "bf16": 2250.0, "f16": 2250.0, "f8": 4500.0, "int8": 4500.0}
_GRACE_BLACKWELL = {
    "f64": 40.0, "f32": 80.0, "tf32": 1250.0, "bf16": 2500.0, "f16": 2500.0, "f8": 5000.0, "int8": 5000.0
}  # fmt: skip
_AMPERE = {"f64": 9.7, "f32": 19.5, "tf32": 156.0, "bf16": 312.0, "f16": 312.0, "int8": 624.0}
_HOPPER_NODES = _network(32 * _NET_100G, 4 * _NET_100G)
_AMPERE_NODES = _network(16 * _NET_100G, 2 * _NET_100G)
_HDR = _network(2 * _NET_100G, 2 * _NET_100G)  # InfiniBand at 200, 100 and 56 Gbit/s, one card for a node
_EDR = _network(_NET_100G, _NET_100G)
_FDR = _network(0.56 * _NET_100G, 0.56 * _NET_100G)
_SCALING_BOOK = "https://jax-ml.github.io/scaling-book/tpus/ and https://cloud.google.com/tpu/docs/"
_GIB = 2**30

_ALL = (
    # DGX B200 and GB200 NVL72: 18 NVLinks of the fifth generation; eight, or one per GPU, 400 Gbit/s network cards.
    # No compile targets yet.
    _gpu("gb200", _GRACE_BLACKWELL, 148, 8000, 186 * 10**9, _nvlink(18, _NVLINK_B200),
         _network(288 * _NET_100G, 4 * _NET_100G), ("GB200",), "https://www.nvidia.com/en-us/data-center/gb200-nvl72/",
         False),
    _gpu("b200", _BLACKWELL, 148, 8000, 180 * 10**9, _nvlink(18, _NVLINK_B200), _HOPPER_NODES,
         ("B200",), "https://resources.nvidia.com/en-us-dgx-systems/dgx-b200-datasheet", False),
    # DGX H200: 18 NVLinks, eight 400 Gbit/s network cards.
    _gpu("h200", _HOPPER, 132, 4800, 151397597184, _nvlink(18, _NVLINK_H100), _HOPPER_NODES,
         ("H200",), "https://www.nvidia.com/en-us/data-center/h200/", True),
    # DGX H100: 18 NVLinks, eight 400 Gbit/s network cards.
    _gpu("h100", _HOPPER, 132, 3352.32, 84929347584, _nvlink(18, _NVLINK_H100), _HOPPER_NODES,
         ("H100",), "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet", True),
    # PCIe 4.0 x16, no NVLink bridge; one 200 Gbit/s network card per node is assumed.
    _gpu("a100-pcie", _AMPERE, 108, 1935.36, 79050250240, _pcie(_PCIE4_X16), _HDR,
         ("A100 80GB PCIe", "A100-PCIE"),
         "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
         "PB-10577-001_v02.pdf", True),
    # DGX A100 40GB: the same links, HBM2.
    _gpu("a100-40", _AMPERE, 108, 1555, 40 * _GIB, _nvlink(12, _NVLINK_A100), _AMPERE_NODES,
         ("A100-SXM4-40GB",), "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
         "nvidia-a100-datasheet-nvidia-us-2188504-web.pdf", False),
    # DGX A100 80GB: 12 NVLinks, eight 200 Gbit/s network cards.
    _gpu("a100", _AMPERE, 108, 2039.04, 85100068864, _nvlink(12, _NVLINK_A100), _AMPERE_NODES,
         ("A100",), "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
         "nvidia-a100-datasheet-nvidia-us-2188504-web.pdf", True),
    # DGX-1: 6 NVLinks, four 100 Gbit/s network cards behind PCIe 3.0.
    _gpu("v100", {"f64": 7.8, "f32": 15.7, "f16": 125.0}, 80, 898.048, 16935682048,
         _nvlink(6, _NVLINK_V100), _network(4 * _NET_100G, _NET_100G), ("V100",),
         "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
         True),
    # 4 NVLinks; nodes on 100 Gbit/s InfiniBand as in FlexFlow, section 8 and Figure 5.
    _gpu("p100", {"f64": 5.3, "f32": 10.6, "f16": 21.2}, 56, 732.16, 17066885120, _nvlink(4, _NVLINK_P100),
         _EDR, ("P100",),
         "https://images.nvidia.com/content/tesla/pdf/nvidia-tesla-p100-datasheet.pdf", True),
    # One of the two dies of a board, boost clock; `k80:8` is EC2's p2.8xlarge. Nodes on 56 Gbit/s InfiniBand as in
    # FlexFlow, section 8.
    # sm_37 is older than today's compilers: it can be planned, not compiled.
    _gpu("k80", {"f64": 1.455, "f32": 4.37}, 13, 240, 12 * _GIB, _pcie(_PCIE_P2_8XLARGE), _FDR,
         ("K80",), "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-product-literature/"
         "Tesla-K80-BoardSpec-07317-001-v05.pdf", False),
    # PCIe 4.0 x16, tensor cores of Ada and Ampere; nodes on 200 or 100 Gbit/s assumed, as clouds rent them. A GeForce
    # sends between cards through host memory, at half of the bus.
    _gpu("l40s", {"f32": 91.6, "tf32": 183.0, "bf16": 362.05, "f16": 362.05, "f8": 733.0, "int8": 733.0}, 142, 864,
         48 * 10**9, _pcie(_PCIE4_X16), _HDR, ("L40S",),
         "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413", False),
    _gpu("l4", {"f32": 30.3, "tf32": 60.0, "bf16": 121.0, "f16": 121.0, "f8": 242.0, "int8": 242.0}, 58, 300,
         24 * 10**9, _pcie(_PCIE4_X16), _EDR, ("NVIDIA L4",),
         "https://resources.nvidia.com/en-us-data-center-overview/l4-gpu-datasheet", False),
    _gpu("a10g", {"f32": 35.0, "tf32": 35.0, "bf16": 70.0, "f16": 70.0, "int8": 140.0}, 80, 600,
         24 * 10**9, _pcie(_PCIE4_X16), _EDR, ("A10G",),
         "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf", False),
    _gpu("4090", {"f32": 82.6, "tf32": 82.6, "bf16": 165.2, "f16": 165.2, "f8": 330.3, "int8": 660.6}, 128, 1008,
         24 * 10**9, _pcie(_PCIE4_X16 / 2), _EDR, ("RTX 4090",),
         "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf", False),
    # Seven Infinity Fabric links of 64 GB/s, one to each of the other GPUs of a node; NCCL's share of a link is taken
    # for RCCL's.
    _gpu("mi300x", {"f64": 81.7, "f32": 163.4, "tf32": 653.7, "bf16": 1307.4, "f16": 1307.4, "f8": 2614.9,
                    "int8": 2614.9}, 304, 5300, 192 * 10**9, _nvlink(7, 0.8 * 64e9), _HOPPER_NODES, ("MI300X",),
         "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/data-sheets/"
         "amd-instinct-mi300x-data-sheet.pdf", False),
    # Boards of PaSE, section IV-B; nodes on 100 Gbit/s InfiniBand assumed. Half-precision dots summed in
    # float32. The 2080 Ti has no access to other cards over PCIe (same section): it sends through host memory, at half
    # of the bus.
    _gpu("2080ti", {"f64": 0.42, "f32": 13.45, "f16": 53.8, "int8": 215.2}, 68, 616, 11 * _GIB,
         _pcie(_PCIE3_X16 / 2), _EDR, ("2080 Ti",),
         "https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/technologies/"
         "turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf", False),
    # Half precision runs at 1/64 of float32 on sm_61, so it is computed in float32.
    _gpu("1080ti", {"f64": 0.354, "f32": 11.34}, 28, 484.4, 11 * _GIB, _pcie(_PCIE3_X16), _EDR,
         ("1080 Ti",), "https://www.nvidia.com/en-gb/geforce/products/10series/geforce-gtx-1080-ti/", False),
    # ICI: one link, one direction; two links per torus dimension where it wraps around.
    _tpu("v4", 275e12, 275e12, 1228e9, 32 * _GIB, 45e9, 3, ("TPU v4",), _SCALING_BOOK),
    _tpu("v5e", 197e12, 394e12, 819e9, 16 * _GIB, 45e9, 2, ("TPU v5 lite", "TPU v5e"), _SCALING_BOOK,
         per_host=8),
    _tpu("v5p", 459e12, 918e12, 2765e9, 95 * _GIB, 90e9, 3, ("TPU v5p", "TPU v5"), _SCALING_BOOK),
    _tpu("v6e", 918e12, 1836e12, 1640e9, 32 * _GIB, 90e9, 2, ("TPU v6 lite", "TPU v6e"), _SCALING_BOOK,
         per_host=8),
    # Ironwood has two devices to a chip; each has half of its units, memory and links: 2,307 TFLOP/s of bf16, twice
    # that of f8, 192 GiB at 7,370 GB/s, six links of 100 GB/s one way. A slice is given in devices.
    _tpu("v7x", 1153.5e12, 1153.5e12, 3685e9, 96 * _GIB, 50e9, 3, ("TPU7x", "TPU v7x"),
         "https://cloud.google.com/tpu/docs/tpu7x"),
    # Nominal: virtual devices of one host, which share its memory bandwidth (order of magnitude of a desktop
    # core; no data sheet). Meant for running plans without accelerators, not for predicting their time.
    ChipSpec(name="cpu", flops_per_second=(("f64", 20e9), ("f32", 40e9)), memory_bytes_per_second=10e9,
             memory_bytes=16 * _GIB, usable_fraction=1.0, launch_seconds=5e-6,
             collective_launch_seconds=50e-6,
             device_link=Link(bandwidth_bytes_per_second=2e9, latency_seconds=10e-6),
             node_link=Link(bandwidth_bytes_per_second=1e9, latency_seconds=50e-6,
                            shared_bytes_per_second=1e9),
             aot_platform="cpu", device_kinds=("cpu",), host_bytes_per_second=10e9, source="nominal"),
)  # fmt: skip

_CLOUDS = {
    # GPUDirect-TCPX, and -TCPXO, over 4 and 8 cards of 200 Gbit/s: https://cloud.google.com/compute/docs/gpus/gpudirect
    "h100-a3": ("h100", _network(8 * _NET_100G, _NET_100G)),
    "h100-a3mega": ("h100", _network(16 * _NET_100G, 2 * _NET_100G)),
    # EFA, 400 Gbit/s for a node: https://aws.amazon.com/ec2/instance-types/p4/
    "a100-p4d": ("a100-40", _network(4 * _NET_100G, 0.5 * _NET_100G)),
}
"""Machines of clouds: a chip of another name, and their network."""


def _presets() -> dict[str, ChipSpec]:
    found = {chip.name: replace(chip, efficiency=EFFICIENCIES.get(chip.name, chip.efficiency)) for chip in _ALL}
    for name, (chip, network) in _CLOUDS.items():
        found[name] = replace(found[chip], name=name, node_link=network, device_kinds=())
    return found


CHIPS: dict[str, ChipSpec] = _presets()
