"""Two networks against each other, each with an optimizer of its own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

generator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
discriminator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
loader = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4)

for (real,) in loader:
    ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
    discriminator_optimizer.zero_grad()
    criterion(discriminator(real), ones).backward()
    fake = generator(torch.randn(len(real), 8))
    criterion(discriminator(fake.detach()), zeros).backward()
    discriminator_optimizer.step()

    generator_optimizer.zero_grad()
    criterion(discriminator(fake), ones).backward()
    generator_optimizer.step()
