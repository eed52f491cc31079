"""States of libraries on JAX, as programs save them: what `table.py` tries.

`STATES` has a row for each library: the modules that a program imports, and functions that make its
states. A function returns the same values each time, so one call makes what is saved and another
one a template of it.
"""

# Imports stand in functions: each process imports the libraries of one row.
# ruff: noqa: E501

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Library:
    """A library, the modules that a program imports of it, and what makes its states."""

    modules: list[str]
    states: dict[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)


STATES: dict[str, Library] = {}


def state(library: str, *modules: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Enters a function that makes a state, under the name of the function."""

    def enter(function: Callable[[], Any]) -> Callable[[], Any]:
        row = STATES.setdefault(library, Library([]))
        row.modules += [module for module in modules if module not in row.modules]
        row.states[function.__name__] = function
        return function

    return enter


def params() -> Any:
    """Parameters of a small network."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "dense": {"kernel": jax.random.normal(keys[0], (8, 4)), "bias": jnp.arange(4.0)},
        "head": {"kernel": jax.random.normal(keys[1], (4, 2), jnp.bfloat16)},
    }


def stepped(optimizer: Any, tree: Any = None) -> Any:
    """The state of an optimizer after a step."""
    import jax
    import jax.numpy as jnp

    tree = params() if tree is None else tree
    gradients = jax.tree.map(lambda x: jnp.full_like(x, 0.5), tree)
    return optimizer.update(gradients, optimizer.init(tree), tree)[1]


# jax itself


@state("jax", "jax", "jax.tree_util", "jax.numpy")
def keys_and_partials() -> Any:
    import jax
    import jax.numpy as jnp

    return {
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 3),
        "partial": jax.tree_util.Partial(jnp.dot, jnp.ones(3)),
        "small": (jnp.ones(2, jnp.bfloat16), None, {1: [True, 2, 2.5, 3j]}),
    }


@state("jax", "jax.example_libraries.optimizers")
def example_optimizers() -> Any:
    from jax.example_libraries import optimizers

    init, update, _ = optimizers.adam(1e-3)
    return update(0, params(), init(params()))


@state("jax", "jax.experimental.sparse")
def sparse() -> Any:
    import jax.numpy as jnp
    from jax.experimental import sparse

    return {"bcoo": sparse.BCOO.fromdense(jnp.eye(3)), "bcsr": sparse.BCSR.fromdense(jnp.eye(3))}


# flax


@state("flax.linen", "flax.linen", "flax")
def variables() -> Any:
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.BatchNorm(use_running_average=False)(nn.Dense(4)(x))
            return nn.MultiHeadDotProductAttention(2)(x)

    return Network().init(jax.random.key(0), jnp.ones((2, 3, 4)))


@state("flax.linen", "flax.core")
def frozen() -> Any:
    import flax.core

    return flax.core.freeze({"params": params()})


@state("flax.linen")
def partitioned() -> Any:
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    init = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
    return nn.Dense(4, kernel_init=init).init(jax.random.key(0), jnp.ones((1, 3)))


@state("flax.training", "flax.training.train_state", "optax")
def train_state() -> Any:
    import jax
    import jax.numpy as jnp
    import optax
    from flax.training.train_state import TrainState

    made = TrainState.create(apply_fn=jnp.dot, params=params(), tx=optax.adamw(1e-3))
    return made.apply_gradients(grads=jax.tree.map(jnp.ones_like, made.params))


@state("flax.training", "flax.training.dynamic_scale")
def dynamic_scale() -> Any:
    from flax.training.dynamic_scale import DynamicScale

    return DynamicScale(growth_interval=5)


@state("flax.struct", "flax.struct")
def struct_dataclass() -> Any:
    import flax.struct
    import jax.numpy as jnp

    return own("Struct", flax.struct.dataclass, w=jnp.ones(3), n=2)


OWN: dict[str, type] = {}


def own(name: str, decorate: Callable[[type], type], /, **fields: Any) -> Any:
    """A dataclass of the program itself, made once."""
    if name not in OWN:
        plain = type(
            name, (), {"__annotations__": dict.fromkeys(fields, Any), "__module__": __name__}
        )
        OWN[name] = globals()[name] = decorate(plain)
    return OWN[name](**fields)


def below(base: type, plain: type) -> type:
    """The same class, with a base."""
    own = {key: vars(plain)[key] for key in ("__annotations__", "__module__")}
    return type(plain.__name__, (base,), own)


@state("flax.nnx", "flax.nnx", "optax")
def linear() -> Any:
    from flax import nnx

    return nnx.Linear(3, 4, rngs=nnx.Rngs(0))


@state("flax.nnx")
def attention() -> Any:
    from flax import nnx

    return nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0))


@state("flax.nnx")
def rnn() -> Any:
    from flax import nnx

    return nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)))


@state("flax.nnx")
def nnx_state() -> Any:
    from flax import nnx

    return nnx.state(nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0)))


@state("flax.nnx")
def pure_dict() -> Any:
    from flax import nnx

    return nnx.to_pure_dict(nnx.state(nnx.BatchNorm(3, rngs=nnx.Rngs(0))))


@state("flax.nnx")
def split() -> Any:
    from flax import nnx

    return nnx.split(
        nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.Dropout(0.1, rngs=nnx.Rngs(1)))
    )


@state("flax.nnx")
def model_and_optimizer() -> Any:
    import optax
    from flax import nnx

    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    return {"model": model, "optimizer": nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)}


@state("flax.nnx")
def metric() -> Any:
    from flax import nnx

    return nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average())


# optax


def _optax(name: str, make: Callable[[Any], Any]) -> None:
    def function() -> Any:
        import optax

        return stepped(make(optax))

    function.__name__ = name
    state("optax", "optax", "optax.contrib")(function)


_optax("sgd", lambda optax: optax.sgd(0.1, momentum=0.9))
_optax("adam", lambda optax: optax.adam(1e-3))
_optax("adamw", lambda optax: optax.adamw(optax.cosine_decay_schedule(1e-3, 10)))
_optax("chain", lambda optax: optax.chain(optax.clip_by_global_norm(1.0), optax.lion(1e-3)))
_optax(
    "multi_transform",
    lambda optax: optax.multi_transform(
        {"a": optax.adam(1e-3), "b": optax.sgd(0.1)}, {"dense": "a", "head": "b"}
    ),
)
_optax("masked", lambda optax: optax.masked(optax.adam(1e-3), {"dense": True, "head": False}))
_optax("inject", lambda optax: optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3))
_optax("MultiSteps", lambda optax: optax.MultiSteps(optax.adam(1e-3), 2))
_optax("apply_if_finite", lambda optax: optax.apply_if_finite(optax.adam(1e-3), 3))
_optax("adafactor", lambda optax: optax.adafactor(1e-3))
_optax("ema", lambda optax: optax.ema(0.9))
_optax("prodigy", lambda optax: optax.contrib.prodigy())
_optax("schedule_free", lambda optax: optax.contrib.schedule_free_adamw(1e-3))
_optax("muon", lambda optax: optax.contrib.muon(1e-3))
_optax("dadapt", lambda optax: optax.contrib.dadapt_adamw())


@state("optax")
def lookahead() -> Any:
    import jax
    import optax

    optimizer = optax.lookahead(optax.adam(1e-3), 5, 0.5)
    tree = optax.LookaheadParams.init_synced(params())
    gradients = jax.tree.map(lambda x: x * 0.5, params())
    return tree, optimizer.update(gradients, optimizer.init(tree), tree)[1]


@state("optax")
def lbfgs() -> Any:
    import jax.numpy as jnp
    import optax

    def loss(x: Any) -> Any:
        return jnp.sum(x**2)

    optimizer, x = optax.lbfgs(), jnp.ones(3)
    value, gradient = loss(x), 2 * x
    return optimizer.update(
        gradient, optimizer.init(x), x, value=value, grad=gradient, value_fn=loss
    )[1]


# equinox and what is made of it


@state("equinox", "equinox", "optax")
def mlp() -> Any:
    import equinox as eqx
    import jax

    return eqx.nn.MLP(2, 3, 4, 2, key=jax.random.key(0))


@state("equinox")
def training_state() -> Any:
    import equinox as eqx
    import jax
    import optax

    model = eqx.nn.Conv2d(1, 2, 3, key=jax.random.key(0))
    optimizer = optax.adam(1e-3)

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        gradients = jax.tree.map(lambda x: x * 0.5, eqx.filter(model, eqx.is_array))
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state

    return step(model, optimizer.init(eqx.filter(model, eqx.is_array)))


@state("equinox")
def batch_norm_and_state() -> Any:
    import equinox as eqx

    return eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, axis_name="batch", mode="batch")


@state("equinox")
def lstm_and_partitions() -> Any:
    import equinox as eqx
    import jax

    model = eqx.nn.LSTMCell(2, 3, key=jax.random.key(0))
    return eqx.partition(model, eqx.is_array)


@state("diffrax", "diffrax", "equinox")
def solution() -> Any:
    import diffrax
    import jax.numpy as jnp

    term = diffrax.ODETerm(lambda t, y, args: -y)
    return diffrax.diffeqsolve(
        term,
        diffrax.Tsit5(),
        0.0,
        1.0,
        0.1,
        jnp.ones(3),
        saveat=diffrax.SaveAt(t1=True, dense=True),
    )


@state("diffrax")
def brownian() -> Any:
    import diffrax
    import jax

    return diffrax.VirtualBrownianTree(0.0, 1.0, 1e-3, (2,), jax.random.key(0))


@state("diffrax")
def controller() -> Any:
    import diffrax

    return {"solver": diffrax.Kvaerno5(), "controller": diffrax.PIDController(1e-3, 1e-6)}


@state("lineax", "lineax")
def operators() -> Any:
    import jax.numpy as jnp
    import lineax

    matrix = lineax.MatrixLinearOperator(jnp.eye(3) * 2, lineax.positive_semidefinite_tag)
    return {
        "m": matrix,
        "d": lineax.DiagonalLinearOperator(jnp.ones(3)),
        "s": lineax.Cholesky().init(matrix, {}),
    }


@state("lineax")
def linear_solution() -> Any:
    import jax.numpy as jnp
    import lineax

    return lineax.linear_solve(lineax.MatrixLinearOperator(jnp.eye(3) * 2), jnp.ones(3))


@state("optimistix", "optimistix")
def minimum() -> Any:
    import jax.numpy as jnp
    import optimistix as optx

    return optx.minimise(lambda x, args: jnp.sum((x - 1) ** 2), optx.BFGS(1e-3, 1e-3), jnp.zeros(3))


@state("optimistix")
def solver_state() -> Any:
    import jax
    import jax.numpy as jnp
    import optimistix as optx

    solver = optx.GradientDescent(0.1, 1e-3, 1e-3)
    return solver.init(
        lambda x, args: (jnp.sum(x**2), None),
        jnp.ones(3),
        None,
        {},
        jax.ShapeDtypeStruct((), jnp.float32),
        None,
        frozenset(),
    )


@state("jaxtyping", "jaxtyping", "equinox")
def annotated_module() -> Any:
    import jax.numpy as jnp

    return own("Annotated", jaxtyped, w=jnp.ones((2, 3)))


def jaxtyped(plain: type) -> type:
    import equinox as eqx
    from jaxtyping import Array, Float, jaxtyped

    plain = type(
        plain.__name__,
        (eqx.Module,),
        {"__annotations__": {"w": Float[Array, "a b"]}, "__module__": __name__},
    )
    return jaxtyped(plain, typechecker=None)


@state("flowjax", "flowjax", "flowjax.distributions", "flowjax.flows", "flowjax.bijections")
def normal() -> Any:
    import jax.numpy as jnp
    from flowjax.distributions import Normal

    return Normal(jnp.zeros(2), 2.0)


@state("flowjax")
def flow() -> Any:
    import jax
    import jax.numpy as jnp
    from flowjax.distributions import Normal
    from flowjax.flows import masked_autoregressive_flow

    return masked_autoregressive_flow(
        jax.random.key(0), base_dist=Normal(jnp.zeros(2)), flow_layers=2, nn_width=4
    )


@state("paramax", "paramax")
def wrapped() -> Any:
    import jax.numpy as jnp
    import paramax

    return {
        "p": paramax.Parameterize(jnp.exp, jnp.zeros(3)),
        "n": paramax.non_trainable(jnp.ones(3)),
        "w": paramax.WeightNormalization(jnp.ones((2, 3))),
    }


@state("quax", "quax.examples.lora", "equinox")
def lora() -> Any:
    import equinox as eqx
    import jax
    from quax.examples import lora

    return lora.loraify(eqx.nn.Linear(4, 4, key=jax.random.key(0)), rank=2, key=jax.random.key(1))


@state("unxt", "unxt")
def quantities() -> Any:
    import jax.numpy as jnp
    import unxt

    return {"q": unxt.Quantity(jnp.ones(3), "m"), "t": unxt.Quantity(jnp.asarray(2.0), "s")}


@state("haliax", "haliax", "haliax.nn", "equinox")
def named_arrays() -> Any:
    import haliax as hax
    import jax

    rows, columns = hax.Axis("rows", 3), hax.Axis("columns", 4)
    return {
        "a": hax.ones((rows, columns)),
        "linear": hax.nn.Linear.init(rows, columns, key=jax.random.key(0)),
    }


@state("jaxley", "jaxley", "jaxley.channels")
def neuron() -> Any:
    import jaxley as jx
    from jaxley.channels import HH

    cell = jx.Cell([jx.Branch(jx.Compartment(), ncomp=2)], parents=[-1])
    cell.insert(HH())
    cell.make_trainable("radius")
    cell.to_jax()
    return cell.get_parameters(), cell.get_all_states([])


@state("interpax", "interpax")
def splines() -> Any:
    import interpax
    import jax.numpy as jnp

    x = jnp.linspace(0, 1, 5)
    return {"i": interpax.Interpolator1D(x, x**2), "p": interpax.Akima1DInterpolator(x, x**2)}


@state("distreqx", "distreqx", "distreqx.distributions")
def distreqx_distributions() -> Any:
    import jax.numpy as jnp
    from distreqx import distributions

    return {
        "n": distributions.Normal(jnp.zeros(2), jnp.ones(2)),
        "c": distributions.Categorical(jnp.zeros(3)),
    }


@state("tinygp", "tinygp", "tinygp.kernels")
def gaussian_process() -> Any:
    import jax.numpy as jnp
    import tinygp

    kernel = 1.5 * tinygp.kernels.ExpSquared(scale=2.0)
    return {"kernel": kernel, "gp": tinygp.GaussianProcess(kernel, jnp.arange(3.0), diag=0.1)}


# haiku and others of DeepMind


@state("haiku", "haiku", "optax")
def haiku_params_and_state() -> Any:
    import haiku as hk
    import jax
    import jax.numpy as jnp

    def network(x: Any) -> Any:
        x = hk.nets.MLP([4, 2], name="mlp")(x)
        return hk.BatchNorm(True, True, 0.9)(x, True)

    return hk.transform_with_state(network).init(jax.random.key(0), jnp.ones((2, 3)))


@state("haiku")
def lstm_and_scale() -> Any:
    import haiku as hk
    import jax.numpy as jnp

    return hk.LSTMState(jnp.ones(2), jnp.zeros(2))


@state("chex", "chex")
def chex_dataclass() -> Any:
    import chex
    import jax.numpy as jnp

    return own("Chex", chex.dataclass, w=jnp.ones(3), inner={"n": 2})


@state("distrax", "distrax")
def distrax_distributions() -> Any:
    import distrax
    import jax.numpy as jnp

    normal = distrax.Normal(jnp.zeros(2), jnp.ones(2))
    return {
        "n": normal,
        "i": distrax.Independent(normal, 1),
        "t": distrax.Transformed(normal, distrax.Tanh()),
    }


@state("tensorflow_probability", "tensorflow_probability.substrates.jax")
def tfp_distributions() -> Any:
    import jax.numpy as jnp
    from tensorflow_probability.substrates.jax import distributions as tfd

    return {
        "n": tfd.Normal(jnp.zeros(2), 1.0),
        "m": tfd.MultivariateNormalDiag(jnp.zeros(2), jnp.ones(2)),
    }


@state("tensorflow_probability")
def mcmc_results() -> Any:
    import jax.numpy as jnp
    from tensorflow_probability.substrates.jax import mcmc

    kernel = mcmc.HamiltonianMonteCarlo(lambda x: -jnp.sum(x**2), 0.1, 2)
    return kernel.bootstrap_results(jnp.ones(2))


@state("jraph", "jraph")
def graphs() -> Any:
    import jax.numpy as jnp
    import jraph

    return jraph.GraphsTuple(
        nodes=jnp.ones((3, 2)), edges=None, senders=jnp.array([0, 1]), receivers=jnp.array([1, 2]),
        n_node=jnp.array([3]), n_edge=jnp.array([2]), globals={"g": jnp.ones(1)},
    )  # fmt: skip


@state("mctx", "mctx")
def search_tree() -> Any:
    import jax
    import jax.numpy as jnp
    import mctx

    def recurrent(params: Any, key: Any, action: Any, embedding: Any) -> Any:
        return mctx.RecurrentFnOutput(
            reward=jnp.ones(2),
            discount=jnp.ones(2),
            prior_logits=jnp.zeros((2, 3)),
            value=jnp.ones(2),
        ), embedding

    root = mctx.RootFnOutput(
        prior_logits=jnp.zeros((2, 3)), value=jnp.zeros(2), embedding=jnp.zeros((2, 1))
    )
    return mctx.muzero_policy({}, jax.random.key(0), root, recurrent, num_simulations=4)


@state("rlax", "rlax")
def popart_and_trace() -> Any:
    import rlax

    init, _ = rlax.popart(2, 1e-3, 1e-6, 1e6)
    return {
        "popart": init(),
        "moments": rlax.create_unbiased_reward_normalizer()
        if hasattr(rlax, "create_unbiased_reward_normalizer")
        else None,
    }


@state("kfac_jax", "kfac_jax")
def kfac_averages() -> Any:
    import jax.numpy as jnp
    import kfac_jax

    average = kfac_jax.utils.WeightedMovingAverage.zeros_array((3,), jnp.float32)
    average.update(jnp.ones(3), 0.95, 1.0)
    return {"average": average}


@state("kfac_jax")
def kfac_optimizer() -> Any:
    import jax
    import jax.numpy as jnp
    import kfac_jax

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        predicted = x @ params
        kfac_jax.register_squared_error_loss(predicted, y)
        return jnp.mean((predicted - y) ** 2)

    optimizer = kfac_jax.Optimizer(
        jax.value_and_grad(loss), l2_reg=0.0, use_adaptive_learning_rate=True,
        use_adaptive_momentum=True, use_adaptive_damping=True, initial_damping=1.0, multi_device=False,
    )  # fmt: skip
    return optimizer.init(
        jnp.ones((3, 2)), jax.random.PRNGKey(0), (jnp.ones((4, 3)), jnp.ones((4, 2)))
    )


# Probabilistic programs


@state("numpyro", "numpyro", "numpyro.infer", "numpyro.distributions")
def svi_state() -> Any:
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    def model(x: Any) -> None:
        numpyro.sample("obs", dist.Normal(numpyro.sample("mean", dist.Normal(0, 1)), 1), obs=x)

    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.1), Trace_ELBO())
    return svi.init(jax.random.PRNGKey(0), jnp.ones(3))


@state("numpyro")
def hmc_state() -> Any:
    import jax
    import jax.numpy as jnp
    from numpyro.infer.hmc import hmc

    init, _ = hmc(lambda x: jnp.sum(x**2), algo="NUTS")
    return init(jnp.ones(2), 3, rng_key=jax.random.PRNGKey(0))


@state("numpyro")
def numpyro_distributions() -> Any:
    import jax.numpy as jnp
    import numpyro.distributions as dist

    return {
        "n": dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        "c": dist.Categorical(logits=jnp.zeros(3)),
    }


@state("blackjax", "blackjax")
def nuts() -> Any:
    import blackjax
    import jax
    import jax.numpy as jnp

    nuts = blackjax.nuts(lambda x: -jnp.sum(x**2), 0.1, jnp.ones(2))
    return nuts.step(jax.random.key(1), nuts.init(jnp.ones(2)))


@state("blackjax")
def smc() -> Any:
    import blackjax.smc.tempered
    import jax.numpy as jnp

    return blackjax.smc.tempered.init({"x": jnp.ones((4, 2))})


@state("dynamax", "dynamax.hidden_markov_model", "dynamax.linear_gaussian_ssm")
def hidden_markov_model() -> Any:
    import jax
    from dynamax.hidden_markov_model import GaussianHMM

    return GaussianHMM(2, 3).initialize(jax.random.PRNGKey(0))


@state("gpjax", "gpjax")
def posterior() -> Any:
    import gpjax as gpx

    prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Constant(), kernel=gpx.kernels.RBF())
    return prior * gpx.likelihoods.Gaussian()


@state("flowMC", "flowMC.resource.buffers", "flowMC.resource.nf_model.rqSpline")
def spline_flow() -> Any:
    import jax
    from flowMC.resource.nf_model.rqSpline import MaskedCouplingRQSpline

    return MaskedCouplingRQSpline(2, 2, [4], 3, jax.random.key(0))


# Simulation and reinforcement learning


@state("brax", "brax.envs", "brax.training.acme.running_statistics")
def brax_state() -> Any:
    import jax
    from brax import envs

    return envs.get_environment("inverted_pendulum", backend="positional").reset(
        jax.random.PRNGKey(0)
    )


@state("brax", "brax.training.agents.ppo.train")
def running_statistics() -> Any:
    import jax.numpy as jnp
    from brax.training.acme import running_statistics, specs

    return running_statistics.init_state(specs.Array((3,), jnp.float32))


@state("mujoco.mjx", "mujoco.mjx")
def mjx_data() -> Any:
    import mujoco
    from mujoco import mjx

    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody></mujoco>"
    )
    return mjx.make_data(mjx.put_model(model))


@state("gymnax", "gymnax")
def cartpole() -> Any:
    import gymnax
    import jax

    env, env_params = gymnax.make("CartPole-v1")
    return env.reset(jax.random.key(0), env_params), env_params


@state("pgx", "pgx")
def games() -> Any:
    import jax
    import pgx

    return {
        name: pgx.make(name).init(jax.random.key(0)) for name in ("tic_tac_toe", "connect_four")
    }


@state("jumanji", "jumanji")
def game_2048() -> Any:
    import jax
    import jumanji

    return jumanji.make("Game2048-v1").reset(jax.random.key(0))


@state("flashbax", "flashbax")
def replay_buffer() -> Any:
    import flashbax
    import jax.numpy as jnp

    made = flashbax.make_item_buffer(max_length=8, min_length=1, sample_batch_size=2)
    return made.add(made.init({"obs": jnp.ones(3)}), {"obs": jnp.full(3, 2.0)})


@state("flashbax")
def prioritised() -> Any:
    import flashbax
    import jax.numpy as jnp

    made = flashbax.make_prioritised_flat_buffer(8, 1, 2)
    return made.add(made.init({"obs": jnp.ones(3)}), {"obs": jnp.full(3, 2.0)})


@state("evosax", "evosax", "evosax.algorithms")
def cma_es() -> Any:
    import jax
    import jax.numpy as jnp
    from evosax.algorithms import CMA_ES

    strategy = CMA_ES(population_size=4, solution=jnp.zeros(3))
    return strategy.init(
        jax.random.key(0), jnp.zeros(3), strategy.default_params
    ), strategy.default_params


@state("jax_md", "jax_md")
def simulation() -> Any:
    import jax
    import jax.numpy as jnp
    from jax_md import energy, simulate, space

    displacement, shift = space.periodic(4.0)
    force = energy.soft_sphere_pair(displacement)
    init, _ = simulate.nvt_nose_hoover(force, shift, 1e-3, 1.0)
    return init(jax.random.PRNGKey(0), jnp.arange(8.0).reshape(4, 2) / 3)


@state("jax_md", "jax_md.partition")
def neighbor_list() -> Any:
    import jax.numpy as jnp
    from jax_md import partition, space

    displacement, _ = space.periodic(4.0)
    return partition.neighbor_list(displacement, 4.0, 1.0).allocate(
        jnp.arange(8.0).reshape(4, 2) / 3
    )


@state("torax", "torax")
def torax_module() -> Any:
    import jax.numpy as jnp
    from torax._src import interpolated_param

    return interpolated_param.InterpolatedVarSingleAxis((jnp.arange(3.0), jnp.ones(3)))


@state("spyx", "spyx.nn")
def spiking() -> Any:
    import spyx.nn
    from flax import nnx

    return nnx.state(spyx.nn.LIF((3,), rngs=nnx.Rngs(0)))


# Dataclasses, named axes, geometry


@state("eformer", "eformer.pytree")
def eformer_dataclass() -> Any:
    import jax.numpy as jnp
    from eformer.pytree import auto_pytree

    return own("Eformer", auto_pytree, w=jnp.ones(3), name="relu")


@state("eformer", "eformer.pytree")
def eformer_struct() -> Any:
    import jax.numpy as jnp
    from eformer.pytree import dataclass

    return own("EformerStruct", dataclass, w=jnp.ones(3))


@state("jax_dataclasses", "jax_dataclasses")
def jax_dataclass() -> Any:
    import jax.numpy as jnp
    import jax_dataclasses as jdc

    return own("Jdc", jdc.pytree_dataclass, w=jnp.ones(3))


@state("jaxlie", "jaxlie")
def lie_groups() -> Any:
    import jax.numpy as jnp
    import jaxlie

    return {"se3": jaxlie.SE3.exp(jnp.ones(6)), "so2": jaxlie.SO2.from_radians(0.5)}


@state("e3nn_jax", "e3nn_jax")
def irreps() -> Any:
    import e3nn_jax as e3nn
    import jax

    return {
        "a": e3nn.normal("2x0e + 1o", jax.random.key(0), (3,)),
        "b": e3nn.IrrepsArray("1o", jax.numpy.ones(3)),
    }


@state("tree_math", "tree_math")
def vector() -> Any:
    import tree_math

    return tree_math.Vector(params())


@state("simple_pytree", "simple_pytree")
def simple() -> Any:
    import jax.numpy as jnp
    import simple_pytree

    return own(
        "Simple",
        lambda plain: simple_pytree.dataclass(below(simple_pytree.Pytree, plain)),
        w=jnp.ones(3),
    )


@state("penzai", "penzai.pz", "penzai.models.simple_mlp")
def penzai_mlp() -> Any:
    import jax
    from penzai import pz
    from penzai.models import simple_mlp

    return pz.unbind_variables(
        simple_mlp.MLP.from_config(
            name="mlp", init_base_rng=jax.random.key(0), feature_sizes=[2, 3, 1]
        )
    )


@state("penzai")
def penzai_named() -> Any:
    import jax.numpy as jnp
    from penzai import pz

    return pz.nx.wrap(jnp.ones((2, 3))).tag("batch", "features")


@state("coordax", "coordax")
def coordax_field() -> Any:
    import coordax
    import jax.numpy as jnp
    import numpy as np

    return coordax.wrap(jnp.ones((2, 3)), "t", coordax.LabeledAxis("x", np.arange(3.0)))


@state("cola", "cola")
def cola_operators() -> Any:
    import cola
    import jax.numpy as jnp

    dense = cola.ops.Dense(jnp.eye(3))
    return {"d": dense, "s": cola.ops.Diagonal(jnp.ones(3)) @ dense}


@state("scico", "scico", "scico.numpy")
def block_array() -> Any:
    import jax.numpy as jnp
    import scico.numpy as snp

    return snp.blockarray([jnp.ones(3), jnp.ones((2, 2))])


@state("ott", "ott", "ott.geometry.pointcloud", "ott.solvers.linear")
def sinkhorn() -> Any:
    import jax.numpy as jnp
    from ott.geometry import pointcloud
    from ott.solvers import linear

    return linear.solve(pointcloud.PointCloud(jnp.arange(6.0).reshape(3, 2)))


@state("netket", "netket")
def netket_sampler() -> Any:
    import jax
    import netket

    hilbert = netket.hilbert.Spin(0.5, 4)
    sampler = netket.sampler.MetropolisLocal(hilbert, n_chains=4)
    machine = netket.models.RBM(alpha=1, param_dtype=float)
    variables = machine.init(jax.random.PRNGKey(0), hilbert.all_states()[:1])
    return {"variables": variables, "sampler": sampler.init_state(machine, variables, seed=1)}


@state("clu", "clu.metrics")
def clu_metrics() -> Any:
    import jax.numpy as jnp
    from clu import metrics

    return metrics.Average.from_model_output(jnp.ones(3))


@state("sepes", "sepes")
def tree_class() -> Any:
    import sepes

    return own(
        "Sepes",
        lambda plain: sepes.autoinit(below(sepes.TreeClass, plain)),
        w=params(),
    )


@state("brainstate", "brainstate")
def brainstate_states() -> Any:
    import brainstate

    return dict(brainstate.nn.Linear(2, 3).states())


@state("qwix", "qwix")
def quantized() -> Any:
    import jax.numpy as jnp
    import qwix

    return qwix.quantize(jnp.arange(12.0).reshape(3, 4), "int8", channelwise_axes=(0,))


@state("zodiax", "zodiax")
def zodiax_module() -> Any:
    import jax.numpy as jnp
    import zodiax

    return own("Zodiax", lambda plain: below(zodiax.Base, plain), w=jnp.ones(3))


@state("jaxopt", "jaxopt")
def jaxopt_states() -> Any:
    import jax.numpy as jnp
    import jaxopt

    solver = jaxopt.LBFGS(lambda x: jnp.sum(x**2))
    x = jnp.ones(3)
    return solver.update(x, solver.init_state(x))


@state("matfree", "matfree.decomp")
def decomposition() -> Any:
    import jax.numpy as jnp
    from matfree import decomp

    return decomp.tridiag_sym(2)(lambda v: 2 * v, jnp.ones(3))
